#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "harness/train/trainer.h"
#include "sharding/partition.h"

namespace assay {

/// The state of a job put together from what its ranks hold, whatever the strategy: whole tensors by
/// "parameters.<name>", "exp_avg.<name>", "exp_avg_sq.<name>".
class WholeState {
 public:
  explicit WholeState(int world_size) : world_size_(world_size) {}

  /// Called by the thread of each rank, once.
  void add(int rank, Trainer& trainer) {
    const std::lock_guard lock(mutex_);
    units_.clear();
    for (const auto& unit : trainer.model().units()) {
      units_.push_back({unit.name, {}});
      for (const auto& parameter : unit.parameters) {
        units_.back().parameters.push_back({parameter.name, parameter.shape, {}});
      }
    }
    for (const auto& [name, tensor] : trainer.state_tensors()) {
      auto& parts = parts_[name];
      parts.resize(static_cast<std::size_t>(world_size_));
      parts[static_cast<std::size_t>(rank)] = tensor.clone();
    }
  }

  /// After all ranks.
  std::map<std::string, at::Tensor> tensors() const {
    std::map<std::string, at::Tensor> result;
    for (const auto& unit : units_) {
      std::vector<FlatParameterSize> sizes;
      for (const auto& parameter : unit.parameters) sizes.push_back({parameter.numel(), parameter.decayed()});
      const FlatLayout layout = make_flat_layout(sizes, world_size_);
      for (const std::string kind : {"parameters.", "exp_avg.", "exp_avg_sq."}) {
        const at::Tensor flat = at::cat(parts_.at(kind + unit.name));
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          result[kind + unit.parameters[i].name] =
              flat.narrow(0, layout.offsets[i], sizes[i].numel).view(unit.parameters[i].shape);
        }
      }
    }
    return result;
  }

 private:
  int world_size_;
  std::mutex mutex_;
  std::vector<Unit> units_;
  std::map<std::string, std::vector<at::Tensor>> parts_;
};

}  // namespace assay
