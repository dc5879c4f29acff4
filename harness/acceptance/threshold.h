#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "harness/acceptance/jobs.h"
#include "harness/core/json.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// Where a search gives up: memory does not limit a key that fits up to here.
inline constexpr std::int64_t kLargestVariedValue = std::int64_t{1} << 20;

/// What is asked: the largest value of `key` with which the recipe's training fits its device_memory.
struct ThresholdQuestion {
  std::string key;        ///< of a recipe, a whole number; model.config.KEY too
  std::int64_t step = 1;  ///< only its multiples are tried; from 1 to kLargestVariedValue
};

/// By dry runs in one process, from the recipe's own value on: {"predicted", "smallest" (a value that fits), "curve":
/// [{"value", "predicted_allocated_bytes", "predicted_reserved_bytes", "fits"}]}. Blocks. Throws Error{usage} for a key
/// that cannot be varied, a recipe without device_memory, and a key without a limit: what that depends on is named;
/// Error{memory} if no value fits; and what run_rank_program throws.
Json predict_threshold(const Recipe& recipe, const ThresholdQuestion& question);

/// By training on the recipe's ranks with synthetic data, from the prediction on, twice from scratch, as jobs
/// threshold-1 and threshold-2 of a run folder that was begun: {"found", "found_again", "points": [{"value", "fits",
/// "measured_allocated_bytes", "measured_reserved_bytes"}]}, of the fullest rank. Blocks. Throws Error for a job that
/// failed, Interrupted, and what run_attempt throws.
Json find_threshold_by_trials(const std::filesystem::path& run_folder, const Recipe& recipe,
                              const ThresholdQuestion& question, const Json& prediction, const JobDisplay& display);

/// The document of `assay threshold --json`. `trials` null: only predicted; then "found", "found_again" and "equal" are
/// null with a reason.
Json threshold_report(const Recipe& recipe, const ThresholdQuestion& question, const Json& prediction,
                      const Json& trials, double seconds);

}  // namespace assay
