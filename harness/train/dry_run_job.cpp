#include <cstdio>

#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/memory/ledger_json.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/dry_run.h"
#include "harness/train/job.h"

namespace assay {
namespace {

Json dry_run_result(const Recipe& recipe) {
  const SystemClock clock;
  const double start = clock.wall_seconds();
  const ModelConfig config = load_model_config(recipe.model.path, recipe.model.config);
  const int world_size = static_cast<int>(recipe.parallel.nproc_per_node);
  const auto ledger = dry_run(recipe, config, 0, world_size);
  return {{"parameters", config.num_parameters()},
          {"trainable_parameters", config.num_parameters()},
          {"world_size", world_size},
          {"peak_allocated_bytes", ledger->peak_bytes()},
          {"by_category", bytes_by_name(ledger->peak_by_category(), kMemoryCategoryNames)},
          {"by_phase", bytes_by_name(ledger->peak_by_phase(), kPhaseNames)},
          {"num_events", ledger->num_events()},
          {"seconds", clock.wall_seconds() - start}};
}

}  // namespace

int run_dry_run_job(const std::vector<Recipe>& recipes) {
  install_tracking_allocators();
  Json results = Json::array();
  for (const auto& recipe : recipes) results.push_back(dry_run_result(recipe));
  std::printf("%s\n", dump_json(results).c_str());
  return exit_done;
}

}  // namespace assay
