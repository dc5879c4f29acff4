#pragma once

#include <cstdint>
#include <optional>

#include "harness/core/json.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// Whether a plan fits, by its dry run.
struct Fit {
  bool fits = false;
  std::int64_t peak_bytes = 0;         ///< reserved by the allocator
  std::int64_t usable_bytes = 0;       ///< of device_memory, for the allocator
  std::int64_t num_alloc_retries = 0;  ///< how often the allocator must give back what it keeps, to fit
  /// What is left, negative if that is not enough; 0 if it fits only by giving back.
  std::int64_t headroom_bytes() const;
};

/// Nothing where no device_memory is stated, or no dry run came to its end.
std::optional<Fit> fit_of(const Json* dry_run);

/// Formula and dry run of a recipe, and the dry run of its job of one process: estimate.json of a run folder.
///
///   formula    weights, gradients, optimizer, activations, communication, overhead, total (bytes)
///   formula_moment  when that is: forward, backward or update
///   dry_run    as the rank program tells it, of the fullest rank; null after a failure; of a model that is not trained
///              its counts, and the reason why there is no peak
///   single     the same of single_recipe(recipe)
///   remedies   what would make it fit, see evaluate_remedies; empty if it does, or no capacity is stated
///   without_checkpointing  the same of the recipe without activation checkpointing; null if it has none
///   error      null, or "error" (kind) and "message" of a dry run that failed
///   seconds    that all of it took
///
/// Starts one process, and one or two more for the remedies. Throws Interrupted after a signal, Error{recipe, data} for
/// a recipe or model folder that the program refuses.
Json make_estimate(const Recipe& recipe);

/// What activation checkpointing saves by the dry run: "mode", "peak_bytes_without", "saved_bytes", null with a reason
/// where there is none.
Json checkpointing_estimate(const Recipe& recipe, const Json& estimate);

/// The document of `assay estimate --json`.
Json estimate_report(const Recipe& recipe, const Json& estimate);

}  // namespace assay
