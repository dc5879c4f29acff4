// The job fit_search: the largest value that fits, by dry runs alone.
#include <c10/util/Exception.h>

#include <cstdio>
#include <map>
#include <optional>

#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/memory/allocator_settings.h"
#include "harness/memory/overhead.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/dry_run.h"
#include "harness/train/fit_question.h"

namespace assay {
namespace {

class FitSearch {
 public:
  explicit FitSearch(const Job& job) : question_(job) {}
  Json run();

 private:
  bool fits(std::int64_t value);
  std::optional<std::int64_t> smallest_that_fits(std::optional<std::int64_t> largest);

  FitQuestion question_;
  std::map<std::int64_t, Json> curve_;  ///< by value
  std::map<std::int64_t, std::string> refused_;
};

/// Under the recipe's capacity; nothing if that is not enough.
std::shared_ptr<MemoryLedger> run_within_capacity(const Recipe& recipe, const ModelConfig& config,
                                                  std::int64_t num_steps) {
  const std::int64_t usable = usable_device_bytes(recipe);
  if (usable <= 0) return nullptr;
  try {
    return dry_run(recipe, config, 0, static_cast<int>(recipe.parallel.nproc_per_node), num_steps, false,
                   allocator_settings(recipe.allocator, usable));
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
}

bool FitSearch::fits(std::int64_t value) try {
  const Recipe recipe = question_.recipe_at(value);
  const ModelConfig config = load_model_config(recipe.model.path, recipe.model.config);
  auto ledger = run_within_capacity(recipe, config, question_.num_steps);
  const bool enough = ledger != nullptr;
  if (!enough) {
    ledger = dry_run(recipe, config, 0, static_cast<int>(recipe.parallel.nproc_per_node), question_.num_steps, false,
                     allocator_settings(recipe.allocator, std::nullopt));
  }
  curve_[value] = {{"value", value},
                   {"predicted_allocated_bytes", ledger->peak_bytes()},
                   {"predicted_reserved_bytes", ledger->allocator().statistics().reserved.peak},
                   {"fits", enough}};
  return enough;
} catch (const Error& error) {
  if (exit_code_of(error.kind()) != exit_usage) throw;
  refused_[value] = error.what();
  return false;
}

/// A value for the step that must succeed after an out-of-memory error.
std::optional<std::int64_t> FitSearch::smallest_that_fits(std::optional<std::int64_t> largest) {
  const std::int64_t low = question_.grid.low;
  const bool is_tried = curve_.contains(low) || refused_.contains(low);
  if (largest && !is_tried) fits(low);
  return curve_.contains(low) && curve_[low]["fits"] == true ? low : largest;
}

Json FitSearch::run() {
  const Threshold threshold = find_threshold(question_.grid, question_.start, [&](auto value) { return fits(value); });
  const auto number_or_null = [](std::optional<std::int64_t> value) { return value ? Json(*value) : Json(); };
  Json result{{"last_good", number_or_null(threshold.last_good)},
              {"first_bad", number_or_null(threshold.first_bad)},
              {"refused", nullptr},
              {"smallest", number_or_null(smallest_that_fits(threshold.last_good))},
              {"curve", Json::array()}};
  if (threshold.first_bad && refused_.contains(*threshold.first_bad)) {
    result["refused"] = refused_[*threshold.first_bad];
  }
  for (const auto& entry : curve_) result["curve"].push_back(entry.second);
  return result;
}

}  // namespace

int run_fit_search(const Job& job) {
  install_tracking_allocators();
  std::printf("%s\n", dump_json(FitSearch(job).run()).c_str());
  return exit_done;
}

}  // namespace assay
