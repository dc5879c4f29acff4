#include "harness/train/training_loop.h"

namespace assay {

int run_training_loop(Trainer& trainer, std::int64_t max_steps, const LoopFeatures& features) {
  int stop_signal = 0;
  while (trainer.progress().step < max_steps && stop_signal == 0) {
    const StepRecord record = trainer.step(features.stop_signal ? features.stop_signal() : 0);
    stop_signal = record.stop_signal;
    if (features.evaluate) features.evaluate(record.step);
    if (features.save) features.save(record.step, stop_signal != 0 || record.step == max_steps);
    if (features.record) features.record(record);
  }
  return stop_signal;
}

}  // namespace assay
