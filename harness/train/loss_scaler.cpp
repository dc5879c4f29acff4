#include "harness/train/loss_scaler.h"

#include <algorithm>

namespace assay {

LossScaler::LossScaler(Precision precision, const LossScaleOptions& options)
    : active_(precision == Precision::fp16), options_(options) {
  if (active_) state_.scale = options.initial;
}

void LossScaler::update(bool overflowed) {
  if (!active_) return;
  if (overflowed) {
    state_ = {std::max(options_.minimum, state_.scale / 2), 0};
  } else if (++state_.good_steps >= options_.growth_interval) {
    state_ = {state_.scale * 2, 0};
  }
}

}  // namespace assay
