#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/recipe/problems.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/yaml_tree.h"

namespace assay {

/// Where each key that was given was written.
using Places = std::map<std::string, Place>;

/// Reads a whole recipe into the members of `fields`. Unknown keys, wrong types and values out of range are added to
/// `problems`; places are recorded for every key that is known.
void read_recipe(const std::vector<Field>& fields, const YamlNode& root, Places& places, Problems& problems);

/// Applies KEY=VALUE words in order, as strictly; a key may be given once. model.config.<key> sets one key of the map.
void read_overrides(const std::vector<Field>& fields, const std::vector<std::string>& overrides, Places& places,
                    Problems& problems);

/// Reads one value into a member; mistakes are added at the value's place.
void read_field(const Field& field, const YamlNode& node, Problems& problems);

}  // namespace assay
