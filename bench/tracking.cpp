// What it costs to follow every allocation: user CPU seconds of training steps of the tiny model, with the tracking
// allocators or without. Prints one JSON line. bench.py runs it both ways in turn.

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "harness/core/clock.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/recipe/load_recipe.h"
#include "harness/train/trainer.h"

namespace {

double user_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) * 1e-6;
}

void measure(bool tracked, int num_steps) {
  using namespace assay;
  const auto recipe = load_recipe("bench/recipes/step_tiny.yaml", {"train.max_steps=100000"}, {}).recipe;
  const auto config = load_model_config(recipe.model.path, recipe.model.config);
  const auto ledger = std::make_shared<MemoryLedger>();
  ledger->keep_history(std::size_t{1} << 16);
  std::optional<LedgerScope> scope;
  if (tracked) {
    install_tracking_allocators();
    scope.emplace(ledger);
  }
  const SystemClock clock;
  const auto device = make_cpu_device(1);
  const auto communicator = make_fake_communicator(0, 1, clock);
  const auto rows = make_synthetic_rows(recipe.data.sequence_length, config.vocab_size, recipe.seed);
  Trainer trainer(recipe, config, {*device, *communicator, clock, *ledger, *rows, {}});
  trainer.initialize_parameters();
  constexpr int kWarmupSteps = 3;
  for (int i = 0; i < kWarmupSteps; ++i) trainer.step();
  const double start = user_seconds();
  for (int i = 0; i < num_steps; ++i) trainer.step();
  std::printf("{\"tracked\": %s, \"user_seconds\": %.6f, \"num_events\": %lld}\n", tracked ? "true" : "false",
              user_seconds() - start, static_cast<long long>(ledger->num_events()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: bench_tracking tracked|untracked STEPS\n", stderr);
    return 2;
  }
  measure(std::strcmp(argv[1], "tracked") == 0, std::atoi(argv[2]));
}
