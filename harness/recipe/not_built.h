#pragma once

#include <string>
#include <vector>

#include "harness/recipe/recipe.h"

namespace assay {

/// A key whose value asks for a part that this version does not have.
struct NotBuilt {
  std::string key;
  std::string what;  ///< the sentence for the user
};

/// All such keys of a resolved recipe, for a command that runs it or one that only says what a run would need.
std::vector<NotBuilt> find_not_built(const Recipe& recipe, bool runs);

}  // namespace assay
