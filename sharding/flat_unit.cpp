#include "sharding/flat_unit.h"

#include <utility>

namespace assay {

FlatUnit::FlatUnit(std::string name, const std::vector<FlatParameter>& parameters, const ShardingOptions& options,
                   Communicator& communicator, Device& device)
    : name_(std::move(name)), places_(parameters.size()) {
  for (const bool trainable : {true, false}) {
    std::vector<FlatParameter> alike;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].trainable != trainable) continue;
      places_[i] = {groups_.size(), alike.size()};
      alike.push_back(parameters[i]);
    }
    if (!alike.empty()) groups_.push_back(std::make_unique<FlatGroup>(alike, trainable, options, communicator, device));
  }
}

FlatGroup* FlatUnit::trained() const {
  return !groups_.empty() && groups_.front()->trainable() ? groups_.front().get() : nullptr;
}

void FlatUnit::write_parameter(std::size_t index, const at::Tensor& values) const {
  groups_[places_[index].group]->write_parameter(places_[index].index, values);
}

FlatGroup::Part FlatUnit::master_part(std::size_t index) const {
  const FlatGroup& group = *groups_[places_[index].group];
  return group.part_of(group.master(), places_[index].index);
}

}  // namespace assay
