#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/core/files.h"
#include "harness/recipe/load_recipe.h"

namespace assay {

/// The folder that --output names, or runs/<recipe>-<time>. Throws Error{usage} if it names none, or one that is not
/// UTF-8: it is handed to the ranks as JSON.
std::filesystem::path run_folder_of(const Recipe& recipe, const std::optional<std::string>& output);

/// The same of a training: without --output and with `resume: auto` the newest unfinished one of the same recipe.
std::filesystem::path training_folder(const Recipe& recipe, const std::optional<std::string>& output);

/// Takes the folder for this process until the result is destroyed; no lock where the file system has none. Throws
/// Error{usage} if another process has it.
FileDescriptor lock_run_folder(const std::filesystem::path& folder);

/// Creates the folder, locks it as lock_run_folder does, and writes limits.yaml (a copy of accept.limits; left out if
/// there is none and `needs_limits` is false), machine.json and recipe.yaml, in this order: a folder with recipe.yaml
/// is one that can be resumed. Throws Error{usage} if the folder holds something else, Error{data} without the limits
/// file, Error{io}.
FileDescriptor begin_run_folder(const std::filesystem::path& folder, const LoadedRecipe& loaded,
                                bool needs_limits = true);

/// Begins the folder, or goes on with an unfinished run in it, locks it, and says which. The events and checkpoints of
/// job train-1 are those of the run. Nothing is created for a recipe whose inputs are not there. Throws as
/// check_inputs, begin_run_folder and check_same_recipe.
FileDescriptor open_run_folder(const std::filesystem::path& folder, const LoadedRecipe& loaded, bool needs_limits,
                               const std::vector<std::string>& allowed_changes = {});

/// A training in this folder was run to its end, which is said: there is nothing to do. Throws Error{recipe} if that
/// was another recipe's.
bool has_ended(const std::filesystem::path& folder, const Recipe& recipe,
               const std::vector<std::string>& allowed_changes = {});

/// It was begun, and SHA256SUMS, which is written last, is not there.
bool is_unfinished(const std::filesystem::path& folder);

/// The recipe of a run folder. Throws Error{usage} if it is none.
Recipe recipe_of_run(const std::filesystem::path& folder);

/// The newest unfinished run folder below `runs` whose recipe has this hash; only such as hold a job train-1 and no
/// results, that is, of `assay train`, and are not locked by a process that is still at it.
std::optional<std::filesystem::path> find_unfinished_training(const std::filesystem::path& runs,
                                                              const std::string& hash);

/// Throws Error{recipe} with all keys in which `recipe` differs from the one of the folder, but for name, resume,
/// accept, plan and the keys in `allowed`.
void check_same_recipe(const std::filesystem::path& folder, const Recipe& recipe,
                       const std::vector<std::string>& allowed = {});

}  // namespace assay
