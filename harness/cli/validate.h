#pragma once

#include <optional>
#include <string>

#include "harness/cli/command_line.h"
#include "harness/recipe/load_recipe.h"

namespace assay {

/// The recipe a command was given, resolved; warnings are logged. `fallback` is the file if none was named.
LoadedRecipe load_from(const CommandLine& line, const std::optional<std::string>& fallback = {});

/// Prints the resolved recipe with origins, or as JSON; starts nothing. Also --dry-run of every command that starts
/// something.
int run_validate(const CommandLine& line);

}  // namespace assay
