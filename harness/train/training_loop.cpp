#include "harness/train/training_loop.h"

namespace assay {

int run_training_loop(Trainer& trainer, std::int64_t max_steps, const LoopFeatures& features) {
  while (trainer.progress().step < max_steps) {
    const StepRecord record = trainer.step(features.stop_signal);
    if (features.evaluate) features.evaluate(record.step);
    if (features.save) features.save(record);
    if (features.record) features.record(record);
    if (record.stop_signal != 0 && record.step < max_steps) return record.stop_signal;
  }
  return 0;
}

}  // namespace assay
