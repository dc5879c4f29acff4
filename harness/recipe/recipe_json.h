#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/core/json.h"
#include "harness/recipe/recipe.h"
#include "harness/recipe/recipe_fields.h"

namespace assay {

/// All keys by section, sizes in bytes. What is open before resolution (model.init, parallel.strategy, accept.limits,
/// an empty text) is left out.
Json recipe_to_json(const Recipe& recipe);

/// The exact inverse of recipe_to_json. Throws Error{recipe} with all mistakes for anything else.
Recipe recipe_from_json(const Json& json);

/// Lower-case SHA-256 of the JSON without name, resume, accept and plan: equal for runs that compute the same.
std::string recipe_hash(const Recipe& recipe);

/// A key whose values differ between two recipes; values as JSON text.
struct RecipeDifference {
  std::string key;
  std::string left;
  std::string right;
};

std::vector<RecipeDifference> recipe_differences(const Recipe& left, const Recipe& right);

/// The same for messages: "train.max_steps: 20 and 30".
std::vector<std::string> differing_keys(const Recipe& left, const Recipe& right);

/// The value of one field, or nothing while it is open (see recipe_to_json).
std::optional<Json> field_to_json(const Field& field);

}  // namespace assay
