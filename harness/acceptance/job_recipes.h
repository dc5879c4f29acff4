#pragma once

#include <string>

#include "harness/recipe/recipe.h"

namespace assay {

/// The recipe of stage single: the target's on one process, without sharding, two steps (in fp16 as many more as its
/// loss scale may have to be halved), saved at the end. Batches hold the rows of all ranks, so those of a target with
/// several ranks are replaced by synthetic data.
Recipe single_recipe(const Recipe& target);

/// The recipe of the job train-1 of an acceptance: the target's, saved often enough to resume from the middle.
Recipe train_recipe(const Recipe& target);

/// That of twin-1: the same, but never resumed.
Recipe twin_recipe(const Recipe& target);

/// Throws Error{recipe} if stage train has too few steps to resume between: an acceptance says so before it starts
/// anything.
void check_can_be_accepted(const Recipe& recipe);

/// What a job of this recipe reads, before anything is started: throws Error{data} for a path of model or data that is
/// used and not there, Error{recipe} for rows longer than the model takes, and what load_model_config and
/// require_trained throw.
void check_inputs(const Recipe& recipe);

/// A sentence if model.config makes the model smaller than the one in model.path, else "". Reads that folder's
/// config.json.
std::string reduced_model_of(const Recipe& recipe);

}  // namespace assay
