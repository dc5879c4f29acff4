#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <utility>
#include <vector>

#include "harness/core/error.h"

namespace assay {

/// What the costly operators of one block computed, in their order: recorded in forward and taken out, each once, when
/// the block is computed again for backward. Owns the tensors until they are taken.
class ActivationTape {
 public:
  /// From now on tensors are taken instead of computed.
  void replay() { replaying_ = true; }

  /// The next results: those of `compute`, which are recorded, or while replaying those that were recorded in their
  /// place.
  template <class Compute>
  std::vector<at::Tensor> next(Compute compute) {
    if (!replaying_) return results_.emplace_back(compute());
    ASSAY_CHECK(!results_.empty());
    auto results = std::move(results_.front());
    results_.pop_front();
    return results;
  }

 private:
  bool replaying_ = false;
  std::deque<std::vector<at::Tensor>> results_;
};

}  // namespace assay
