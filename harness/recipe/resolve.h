#pragma once

#include "harness/recipe/load_recipe.h"
#include "harness/recipe/problems.h"
#include "harness/recipe/read_fields.h"

namespace assay {

/// Fills in what is `auto` or open and checks rules between keys. `places` says where keys were written, `whole` is the
/// place of a key that was not. Keys with a mistake take no part in rules.
void resolve_recipe(LoadedRecipe& loaded, const ResolveFacts& facts, const Places& places, const Place& whole,
                    Problems& problems);

}  // namespace assay
