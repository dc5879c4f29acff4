#include <c10/util/Exception.h>

#include <cstdio>
#include <optional>

#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/memory/allocator_settings.h"
#include "harness/memory/ledger_json.h"
#include "harness/memory/overhead.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/dry_run.h"
#include "harness/train/job.h"

namespace assay {
namespace {

/// Whether a plan fits the memory that is left for the allocator, and how often that gave its cache back on the way.
Json fit_of(const Recipe& recipe, const ModelConfig& config, int world_size, std::int64_t peak_reserved_bytes) {
  Json fit{{"fits", nullptr}, {"usable_bytes", nullptr}, {"num_alloc_retries", 0}};
  if (!recipe.device_memory_bytes) return fit;
  const std::int64_t usable = usable_device_bytes(recipe);
  fit["usable_bytes"] = usable;
  fit["fits"] = peak_reserved_bytes <= usable;
  if (fit["fits"] == true) return fit;
  // Less may do: a full allocator gives back what it only keeps.
  try {
    const auto ledger =
        dry_run(recipe, config, 0, world_size, kDryRunSteps, false, allocator_settings(recipe.allocator, usable));
    fit["fits"] = true;
    fit["num_alloc_retries"] = ledger->allocator().statistics().num_alloc_retries;
  } catch (const c10::OutOfMemoryError& error) {
    fit["out_of_memory"] = error.what_without_backtrace();
  }
  return fit;
}

Json largest_of(const MemoryLedger& ledger) {
  Json rows = Json::array();
  for (const auto& block : ledger.largest_at_peak()) {
    rows.push_back({{"bytes", block.bytes},
                    {"count", block.count},
                    {"category", name_of(block.category)},
                    {"phase", name_of(block.phase)},
                    {"operation", block.operation == nullptr ? Json() : Json(block.operation)},
                    {"unit", block.unit.empty() ? Json() : Json(block.unit)}});
  }
  return rows;
}

Json dry_run_result(const Recipe& recipe) {
  const SystemClock clock;
  const double start = clock.wall_seconds();
  const ModelConfig config = load_model_config(recipe.model.path, recipe.model.config);
  const int world_size = static_cast<int>(recipe.parallel.nproc_per_node);
  const auto ledger = dry_run(recipe, config, 0, world_size, kDryRunSteps, /*record_events=*/true,
                              allocator_settings(recipe.allocator, std::nullopt));
  const auto& statistics = ledger->allocator().statistics();
  Json result{{"parameters", config.num_parameters()},
              {"trainable_parameters", config.num_parameters()},
              {"world_size", world_size},
              {"peak_allocated_bytes", ledger->peak_bytes()},
              {"peak_reserved_bytes", statistics.reserved.peak},
              {"by_category", bytes_by_name(ledger->peak_by_category(), kMemoryCategoryNames)},
              {"by_phase", bytes_by_name(ledger->peak_by_phase(), kPhaseNames)},
              {"largest_at_peak", largest_of(*ledger)},
              {"num_events", ledger->num_events()}};
  result.update(fit_of(recipe, config, world_size, statistics.reserved.peak));
  result["seconds"] = clock.wall_seconds() - start;
  return result;
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
