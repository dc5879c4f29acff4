#pragma once

#include <cstdint>
#include <functional>

#include "harness/train/trainer.h"

namespace assay {

/// What surrounds the steps of a job, chosen before the loop; each may be empty.
struct LoopFeatures {
  std::function<int()> stop_signal;                 ///< a signal this process received, or 0
  std::function<void(std::int64_t step)> evaluate;  ///< Collective; decides itself whether it is time
  std::function<void(const StepRecord&)> save;      ///< Collective; decides itself whether it is time
  std::function<void(const StepRecord&)> record;    ///< last, so that it can count the save in
};

/// Collective: steps until `max_steps` are done or some rank was told to stop. Returns the signal
/// that stopped it before that, or 0.
int run_training_loop(Trainer& trainer, std::int64_t max_steps, const LoopFeatures& features);

}  // namespace assay
