#pragma once

#include <cstdint>

#include "harness/recipe/recipe.h"

namespace assay {

/// Learning rate used by optimizer step `step` (1 is the first) of `max_steps`. Moves once an optimizer step, whatever
/// the accumulation and the number of ranks.
///
/// Warm-up of W steps: peak (step - 1) / W by transformers' convention, so the first step moves nothing, or peak step /
/// W by torchtitan's. Then with p from 0 to 1 over the remaining steps and floor = min_lr_ratio:
///   cosine    peak (floor + (1 - floor) (1 + cos(pi p)) / 2)   (transformers' cosine with min_lr)
///   linear    peak (floor + (1 - floor) (1 - p))
///   constant  peak
///   wsd       peak until p = 0.8, then down to floor on a line
/// A warm-up as long as the run never reaches the peak; nothing is divided by 0.
double learning_rate_at(const ScheduleOptions& schedule, double peak, std::int64_t step, std::int64_t max_steps);

}  // namespace assay
