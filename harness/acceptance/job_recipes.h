#pragma once

#include <string>

#include "harness/recipe/recipe.h"

namespace assay {

/// The recipe of stage single: the target's on one process, without sharding, two steps, saved at the end. Batches
/// hold the rows of all ranks, so a target with several ranks is replaced by synthetic data there.
Recipe single_recipe(const Recipe& target);

/// The recipe of the job train-1 of an acceptance: the target's, saved often enough to resume from the middle.
Recipe train_recipe(const Recipe& target);

/// That of twin-1: the same, but never resumed.
Recipe twin_recipe(const Recipe& target);

/// Throws Error{recipe} if stage train has too few steps to resume between, and Error{data} for a path of model or data
/// that is not there: an acceptance says so before it starts anything.
void check_can_be_accepted(const Recipe& recipe);

/// A sentence if model.config makes the model smaller than the one in model.path, else "". Reads that folder's
/// config.json.
std::string reduced_model_of(const Recipe& recipe);

}  // namespace assay
