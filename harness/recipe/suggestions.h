#pragma once

#include <string>
#include <vector>

#include "harness/recipe/recipe_fields.h"

namespace assay {

/// "unknown key; did you mean train.micro_batch_size?": first what other tools' keys are called here, then the nearest
/// key of all sections.
std::string unknown_key_text(const std::vector<Field>& fields, const std::string& key);

/// Throws Error{usage} with the nearest key if `key`, the value of a command's option, is no key of a recipe.
void check_key(const std::string& option, const std::string& key);

/// "tokenizer: {path: ...}": how a section is written.
std::string section_example(const std::vector<Field>& fields, const std::string& section);

}  // namespace assay
