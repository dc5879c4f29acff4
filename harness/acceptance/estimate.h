#pragma once

#include "harness/core/json.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// Formula and dry run of a recipe, and the dry run of its job of one process: estimate.json of a run folder.
///
///   formula    weights, gradients, optimizer, activations, communication, overhead, total (bytes)
///   dry_run    as the rank program tells it, of the fullest rank; null after a failure
///   single     the same of single_recipe(recipe)
///   without_checkpointing  the same of the recipe without activation checkpointing; null if it has none
///   error      null, or "error" (kind) and "message" of a dry run that failed
///   seconds    that all of it took
///
/// Starts one process. Throws Error{recipe, data} for a recipe or model folder that the program refuses.
Json make_estimate(const Recipe& recipe);

/// What activation checkpointing saves by the dry run: "mode", "peak_bytes_without", "saved_bytes", null with a reason
/// where there is none.
Json checkpointing_estimate(const Recipe& recipe, const Json& estimate);

/// The document of `assay estimate --json`.
Json estimate_report(const Recipe& recipe, const Json& estimate);

}  // namespace assay
