#pragma once

#include <string>

#include "harness/recipe/recipe.h"

namespace assay {

/// The recipe of stage single: the target's on one process, without sharding, two steps, saved at the end.
Recipe single_recipe(const Recipe& target);

/// The recipe of the jobs train-1 and twin-1 of an acceptance: the target's, saved often enough to resume from the
/// middle.
Recipe train_recipe(const Recipe& target);

/// A sentence if model.config makes the model smaller than the one in model.path, else "". Reads that folder's
/// config.json.
std::string reduced_model_of(const Recipe& recipe);

}  // namespace assay
