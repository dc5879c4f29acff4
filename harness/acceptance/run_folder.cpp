#include "harness/acceptance/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "harness/acceptance/checksums.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/acceptance/limits.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/core/log.h"
#include "harness/machine/inventory.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace fs = std::filesystem;

namespace {

/// Empty if another process has it.
std::optional<FileDescriptor> try_lock(const fs::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) throw_errno("open", folder);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  return file;
}

void check_fresh(const fs::path& folder) {
  if (!fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder))) return;
  throw Error(ErrorKind::usage,
              folder.string() + " is there and is no unfinished run of this program: give another --output");
}

/// Makes events and checkpoints of the run folder links to those of a job.
void link_main_job(const fs::path& folder, const std::string& job) {
  for (const char* name : {"events", "checkpoints"}) {
    std::error_code code;
    if (fs::is_symlink(folder / name, code)) continue;
    fs::create_symlink(fs::path("jobs") / job / name, folder / name, code);
    if (code) throw Error(ErrorKind::io, "cannot link " + (folder / name).string() + ": " + code.message());
  }
}

}  // namespace

FileDescriptor lock_run_folder(const fs::path& folder) {
  auto lock = try_lock(folder);
  if (lock) return std::move(*lock);
  throw Error(ErrorKind::usage, folder.string() +
                                    " is in use: another process of this program runs in it; wait for its "
                                    "end, or give another --output");
}

fs::path run_folder_of(const Recipe& recipe, const std::optional<std::string>& output) {
  if (!output) return fs::path("runs") / (recipe.name + "-" + utc_now_compact());
  if (output->empty()) throw Error(ErrorKind::usage, "--output is empty; name a folder");
  const auto absolute = fs::absolute(*output).string();
  if (parse_json(dump_json(absolute), "--output") != absolute) {
    throw Error(ErrorKind::usage, "--output " + *output + " is not UTF-8; give another name");
  }
  return *output;
}

fs::path training_folder(const Recipe& recipe, const std::optional<std::string>& output) {
  if (!output && recipe.resume == "auto") {
    if (const auto unfinished = find_unfinished_training("runs", recipe_hash(recipe))) return *unfinished;
  }
  return run_folder_of(recipe, output);
}

FileDescriptor begin_run_folder(const fs::path& folder, const LoadedRecipe& loaded, bool needs_limits) {
  check_fresh(folder);
  const auto limits_file = find_shipped(loaded.recipe.accept.limits.value());
  const bool with_limits = needs_limits || fs::exists(limits_file);
  if (with_limits) load_limits(limits_file);
  make_folders(folder);
  auto lock = lock_run_folder(folder);
  check_fresh(folder);  // again: another process may have begun and ended since
  make_folders(folder / "jobs");
  if (with_limits) write_file_durably(folder / "limits.yaml", read_text_file(limits_file));
  write_file_durably(folder / "machine.json", dump_json_pretty(read_inventory(folder)));
  write_file_durably(folder / "recipe.yaml", recipe_to_yaml(loaded));
  return lock;
}

FileDescriptor open_run_folder(const fs::path& folder, const LoadedRecipe& loaded, bool needs_limits,
                               const std::vector<std::string>& allowed_changes) {
  check_inputs(loaded.recipe);
  FileDescriptor lock;
  if (is_unfinished(folder)) {
    lock = lock_run_folder(folder);
    check_same_recipe(folder, loaded.recipe, allowed_changes);
    log_info("going on with the unfinished run in " + folder.string());
  } else {
    lock = begin_run_folder(folder, loaded, needs_limits);
    log_info("run folder " + folder.string());
  }
  link_main_job(folder, "train-1");
  return lock;
}

bool has_ended(const fs::path& folder, const Recipe& recipe, const std::vector<std::string>& allowed_changes) {
  const bool ended = fs::exists(folder / "recipe.yaml") && !is_unfinished(folder) &&
                     read_job_progress(folder / "jobs" / "train-1").done();
  if (!ended) return false;
  check_same_recipe(folder, recipe, allowed_changes);
  log_info("nothing to do: the training in " + folder.string() + " has ended");
  return true;
}

bool is_unfinished(const fs::path& folder) {
  return fs::exists(folder / "recipe.yaml") && !fs::exists(folder / kChecksums);
}

Recipe recipe_of_run(const fs::path& folder) {
  const auto file = folder / "recipe.yaml";
  if (!fs::exists(file)) throw Error(ErrorKind::usage, folder.string() + " is no run folder: it has no recipe.yaml");
  try {
    ResolveFacts facts;
    facts.runs = false;  // the command that made the folder has asked that
    return load_recipe(file, {}, facts).recipe;
  } catch (const Error& error) {
    throw Error(error.kind(), std::string(error.what()) + "\n" + file.string() +
                                  " is damaged, or of another version of this program; put back a whole copy of it, or "
                                  "begin anew with another --output");
  }
}

std::optional<fs::path> find_unfinished_training(const fs::path& runs, const std::string& hash) {
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(runs, code)) {
    const auto& folder = entry.path();
    try {
      if (!is_unfinished(folder) || fs::exists(folder / "results.jsonl") ||
          !fs::exists(folder / "jobs/train-1/job.json"))
        continue;
      if (!try_lock(folder)) continue;
      const auto time = fs::last_write_time(folder / "recipe.yaml");
      if (newest && time <= newest_time) continue;
      if (recipe_hash(recipe_of_run(folder)) != hash) continue;
      newest = folder;
      newest_time = time;
    } catch (const std::exception&) {
      continue;  // of another version of this program, damaged, or not ours to read
    }
  }
  return newest;
}

void check_same_recipe(const fs::path& folder, const Recipe& recipe, const std::vector<std::string>& allowed) {
  const auto before = recipe_of_run(folder);
  if (recipe_hash(before) == recipe_hash(recipe)) return;
  std::string keys;
  for (const auto& [key, left, right] : recipe_differences(before, recipe)) {
    const auto section = key.substr(0, key.find('.'));
    if (section == "name" || section == "resume" || section == "accept" || section == "plan") continue;
    if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
    keys += "\n  " + key + ": " + left + " and " + right;
  }
  if (keys.empty()) return;
  throw Error(ErrorKind::recipe, folder.string() + " is a run of another recipe; it differs in" + keys +
                                     "\nResume with the same recipe, name each change you mean by --allow-change "
                                     "(train), or give another --output");
}

}  // namespace assay
