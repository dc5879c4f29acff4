#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness/device/device.h"
#include "sharding/communicator.h"
#include "sharding/partition.h"

namespace assay {

/// A parameter that a unit is to hold. `value` is set to a leaf tensor whose memory is part of the unit's flat buffer.
struct FlatParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  bool decayed = true;
  at::Tensor* value = nullptr;
};

/// The parameters of one unit and their gradients in two flat fp32 buffers. Each parameter's value and grad() are views
/// of them for as long as the unit lives, so that gradients accumulate in place.
class FlatUnit {
 public:
  /// Allocates both buffers (zeros) on the device and sets the values of `parameters`, which must outlive the unit.
  FlatUnit(std::string name, const std::vector<FlatParameter>& parameters, int rank, int world_size, Device& device);

  const std::string& name() const { return name_; }
  const FlatLayout& layout() const { return layout_; }
  const at::Tensor& parameters() const { return parameters_; }  ///< [layout().numel]
  const at::Tensor& gradients() const { return gradients_; }    ///< [layout().numel]

  /// This rank's part of a flat buffer of this unit: a view [shard_numel].
  at::Tensor shard_of(const at::Tensor& flat) const;

  void zero_gradients();

 private:
  std::string name_;
  int rank_;
  FlatLayout layout_;
  at::Tensor parameters_;
  at::Tensor gradients_;
};

}  // namespace assay
