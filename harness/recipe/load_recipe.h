#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/recipe/recipe.h"

namespace assay {

/// What the machine and the start say about a recipe.
struct ResolveFacts {
  bool cuda_available = false;  ///< `device: auto` is cuda then
  bool runs = true;             ///< on the device; else the device only names what is planned for
  /// Ranks of the whole job where the environment decides (torchrun, Slurm); else parallel.nproc_per_node.
  std::optional<std::int64_t> world_size;
};

/// A resolved recipe: nothing in it is `auto` or open any more.
struct LoadedRecipe {
  Recipe recipe;
  std::map<std::string, std::string> origins;  ///< of every key: "file:line", "command line", "default", "resolved"
  std::vector<std::string> warnings;           ///< sentences for the user
};

/// Reads a recipe file, applies KEY=VALUE overrides, resolves and validates. Throws Error{recipe} with every mistake,
/// one a line as "file:line:column: section.key: ...", and Error{data} if there is no such file. Starts nothing, opens
/// no other file.
LoadedRecipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                         const ResolveFacts& facts);

/// A resolved recipe with KEY=VALUE changes, under the rules of the command line; a global batch size that is open is
/// resolved anew. Throws Error{recipe} with every mistake.
Recipe with_overrides(const Recipe& resolved, const std::vector<std::string>& overrides);

/// The resolved recipe as a recipe file, with the origin of each value as a comment. load_recipe reads it to an equal
/// recipe.
std::string recipe_to_yaml(const LoadedRecipe& loaded);

}  // namespace assay
