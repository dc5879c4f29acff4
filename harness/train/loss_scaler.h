#pragma once

#include <cstdint>

#include "harness/recipe/recipe.h"

namespace assay {

/// Dynamic loss scaling (Micikevicius et al. 2018): gradients are made `scale()` times too large, so that small ones
/// survive in fp16. One value on all ranks, since all ranks see the same reduced gradient. Constant 1 unless the
/// precision is fp16.
class LossScaler {
 public:
  struct State {
    double scale = 1;
    std::int64_t good_steps = 0;  ///< since the scale last changed
    bool operator==(const State&) const = default;
  };

  LossScaler(Precision precision, const LossScaleOptions& options);

  bool active() const { return active_; }
  /// Of the backward passes of this step; the same number divides the gradients.
  double scale() const { return state_.scale; }
  /// The scale cannot fall further: gradients that still overflow mean that the model is not trainable in fp16.
  bool at_minimum() const { return state_.scale <= options_.minimum; }

  /// Last act of a step: doubles the scale after growth_interval good steps in a row, halves it after an overflow, not
  /// below the minimum.
  void update(bool overflowed);

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  bool active_;
  LossScaleOptions options_;
  State state_;
};

}  // namespace assay
