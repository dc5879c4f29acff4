#include "harness/train/dry_run.h"

#include <algorithm>
#include <optional>

#include "harness/core/clock.h"
#include "harness/memory/operation_labels.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/training_loop.h"

namespace assay {

std::shared_ptr<MemoryLedger> dry_run(const Recipe& recipe, const ModelConfig& config, int rank, int world_size,
                                      std::int64_t num_steps, bool record_events, const AllocatorSettings& allocator) {
  auto ledger = std::make_shared<MemoryLedger>(allocator);
  ledger->record_events(record_events);
  const LedgerScope scope(ledger);
  std::optional<OperationLabels> labels;
  if (record_events) labels.emplace(ledger);
  const ManualClock clock;
  const bool cuda = recipe.device == DeviceChoice::cuda;
  const auto device = make_meta_device({.cuda = cuda, .num_threads = static_cast<int>(recipe.train.num_threads)});
  const auto communicator = make_fake_communicator(rank, world_size, clock, /*sums_in_place=*/cuda);
  const auto rows = make_synthetic_rows(recipe.data.sequence_length, config.vocab_size, recipe.seed);
  Trainer trainer(recipe, config, {*device, *communicator, clock, *ledger, *rows, {}});
  trainer.initialize_parameters();
  run_training_loop(trainer, std::min(num_steps, recipe.train.max_steps), {});
  ledger->record_events(false);  // taking the trainer down is not part of the plan
  return ledger;
}

}  // namespace assay
