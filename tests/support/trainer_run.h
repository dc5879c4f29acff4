#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "harness/core/clock.h"
#include "harness/device/device.h"
#include "harness/memory/allocator_settings.h"
#include "harness/memory/ledger.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/load_model.h"
#include "harness/train/trainer.h"
#include "sharding/communicator.h"
#include "tests/support/test_communicator.h"

namespace assay {

/// Collective: the weights of a Hugging Face folder.
inline void load_weights(Trainer& trainer, const std::filesystem::path& folder) {
  load_model_weights(trainer.model(), folder, [&](std::size_t unit, std::size_t i, const at::Tensor& values) {
    trainer.write_parameter(unit, i, values);
  });
  trainer.publish_parameters();
}

/// What one rank of a test run holds while `body` runs.
struct TestRank {
  int rank;
  Trainer& trainer;
  MemoryLedger& ledger;
  Communicator& communicator;
};

/// Builds a CPU trainer a rank, ranks as threads, parameters initialized, and runs `body` on each.
inline void run_trainers(const Recipe& recipe, const ModelConfig& config, int world_size, int port,
                         const std::function<void(TestRank)>& body, bool record_events = false) {
  install_tracking_allocators();
  run_ranks(world_size, [&](int rank) {
    const SystemClock clock;
    const auto communicator = make_test_communicator(rank, world_size, port, clock);
    const auto rows = make_row_source(recipe, world_size, config.vocab_size);
    auto ledger = std::make_shared<MemoryLedger>(allocator_settings(recipe));
    ledger->record_events(record_events);
    const LedgerScope scope(ledger);
    const auto device = make_cpu_device(static_cast<int>(recipe.train.num_threads));
    Trainer trainer(recipe, config, {*device, *communicator, clock, *ledger, *rows, {}});
    trainer.initialize_parameters();
    body({rank, trainer, *ledger, *communicator});
  });
}

}  // namespace assay
