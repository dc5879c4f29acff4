#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sharding/flat_group.h"

namespace assay {

/// The parameters of one unit: a group of trained ones, if there are any, and one of frozen ones, if there are any.
class FlatUnit {
 public:
  /// As FlatGroup's constructor.
  FlatUnit(std::string name, const std::vector<FlatParameter>& parameters, const ShardingOptions& options,
           Communicator& communicator, Device& device);

  const std::string& name() const { return name_; }
  const std::vector<std::unique_ptr<FlatGroup>>& groups() const { return groups_; }

  /// The trained group, or nullptr.
  FlatGroup* trained() const;

  /// Writes the values of a parameter, by its index in the constructor's list; see FlatGroup::write_parameter.
  void write_parameter(std::size_t index, const at::Tensor& values) const;

  /// What this rank owns of a parameter's masters, by the same index.
  FlatGroup::Part master_part(std::size_t index) const;

 private:
  struct Place {
    std::size_t group;
    std::size_t index;
  };
  std::string name_;
  std::vector<std::unique_ptr<FlatGroup>> groups_;
  std::vector<Place> places_;  ///< of each parameter
};

}  // namespace assay
