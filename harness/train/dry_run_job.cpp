#include <c10/util/Exception.h>

#include <cstdio>
#include <memory>
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

/// What a plan allocates, and whether it fits the memory that is left for the allocator.
struct Prediction {
  std::shared_ptr<MemoryLedger> ledger;
  Json fit{{"fits", nullptr}, {"usable_bytes", nullptr}, {"num_alloc_retries", 0}};
};

/// Under a limit less may do: a full allocator gives back what it only keeps, and may collect garbage before. If the
/// plan comes to its end so, that is what a run does, and the prediction.
Prediction predict(const Recipe& recipe, const ModelConfig& config, int world_size) {
  const auto run = [&](std::optional<std::int64_t> capacity) {
    return dry_run(recipe, config, 0, world_size, kDryRunSteps, /*record_events=*/true,
                   allocator_settings(recipe.allocator, capacity));
  };
  Prediction prediction{run(std::nullopt)};
  if (!recipe.device_memory_bytes) return prediction;
  Json& fit = prediction.fit;
  const std::int64_t usable = usable_device_bytes(recipe);
  const std::int64_t unlimited = prediction.ledger->allocator().statistics().reserved.peak;
  fit["usable_bytes"] = usable;
  fit["unlimited_peak_reserved_bytes"] = unlimited;
  fit["fits"] = unlimited <= usable;
  if (usable <= 0 || (fit["fits"] == true && !recipe.allocator.garbage_collection_threshold)) return prediction;
  try {
    prediction.ledger = run(usable);
    fit["fits"] = true;
    fit["num_alloc_retries"] = prediction.ledger->allocator().statistics().num_alloc_retries;
  } catch (const c10::OutOfMemoryError& error) {
    fit["fits"] = false;
    fit["out_of_memory"] = error.what_without_backtrace();
  }
  return prediction;
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
  const auto [ledger, fit] = predict(recipe, config, world_size);
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
  result.update(fit);
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
