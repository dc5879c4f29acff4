#pragma once

#include <string>

#include "harness/cli/command_line.h"
#include "harness/recipe/load_recipe.h"

namespace assay {

/// The recipe a command was given, resolved for this machine; warnings are logged. `runs`: the command starts ranks;
/// else the recipe's device need not be there.
LoadedRecipe load_from(const CommandLine& line, bool runs = true);

/// Prints the resolved recipe with origins, or with --json as JSON: what --dry-run does in every command that starts
/// something. Returns exit_done.
int print_recipe(const LoadedRecipe& loaded, const CommandLine& line);

/// `assay validate`: checks a recipe and prints it; with --keys, prints what keys there are. Starts nothing.
int run_validate(const CommandLine& line);

}  // namespace assay
