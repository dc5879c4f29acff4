#include "harness/cli/run_commands.h"

#include <cstdio>
#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "harness/acceptance/checksums.h"
#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/run_folder.h"
#include "harness/acceptance/stages.h"
#include "harness/cli/interrupt.h"
#include "harness/cli/validate.h"
#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/core/log.h"
#include "harness/recipe/suggestions.h"
#include "harness/report/report.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultRecipe = "recipes/tiny_cpu.yaml";
constexpr const char* kResults = "results.jsonl";

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

JobDisplay display_of(const CommandLine& line) {
  constexpr int kHideStdout = 1;
  return {.echo = !line.has("quiet"), .hidden_streams = line.has("json") ? kHideStdout : 0};
}

/// The default recipe; it and what it names are found where they were installed too.
LoadedRecipe load_default(CommandLine line) {
  line.paths = {find_shipped(kDefaultRecipe).string()};
  auto loaded = load_from(line);
  auto& recipe = loaded.recipe;
  recipe.model.path = find_shipped(recipe.model.path).string();
  for (auto& entry : recipe.data.path) entry.path = find_shipped(entry.path).string();
  if (recipe.data.eval_path) recipe.data.eval_path = find_shipped(*recipe.data.eval_path).string();
  return loaded;
}

/// A word as a shell needs it to read it back.
std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./=:,@%+") == std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

std::vector<std::string> allowed_changes_of(const CommandLine& line) {
  const auto keys = line.has("allow-change") ? line.options.at("allow-change") : std::vector<std::string>();
  for (const auto& key : keys) check_key("--allow-change", key);
  return keys;
}

/// The call that goes on with a run.
std::string resume_command(const CommandLine& line, const fs::path& folder) {
  std::string text = "assay " + line.command;
  for (const auto& word : line.paths) text += " " + quoted(word);
  for (const auto& word : line.overrides) text += " " + quoted(word);
  for (const auto& key : allowed_changes_of(line)) text += " --allow-change " + quoted(key);
  return text + " --output " + quoted(folder.string());
}

int say_interrupted(const CommandLine& line, const fs::path& folder) {
  const auto command = resume_command(line, folder);
  if (line.has("json")) {
    print(dump_json_pretty({{"verdict", "incomplete"}, {"exit_code", exit_incomplete}, {"resume", command}}));
  }
  log_warning("interrupted; this goes on with it:\n  " + command);
  return exit_incomplete;
}

/// Writes the reports of an evaluated run and shows the verdict. `ended`: also its results, and the checksums, after
/// which it cannot go on.
int finish_run(const CommandLine& line, const fs::path& folder, const RunRecord& run,
               const std::vector<Result>& results, bool ended) {
  if (ended) write_results(folder / kResults, results);
  const auto report = write_reports(folder, run, results);
  if (ended) write_checksums(folder);
  const auto verdict = verdict_of(results);
  if (line.has("json")) {
    print(dump_json_pretty(report));
    return verdict.exit_code;
  }
  std::string text = verdict.name + ": " + run.recipe.name + " (" + std::to_string(verdict.num_pass) + " passed, " +
                     std::to_string(verdict.num_fail) + " failed, " + std::to_string(verdict.num_incomplete) +
                     " incomplete, " + std::to_string(verdict.num_skip) + " skipped)\n";
  for (const auto& result : results) {
    if (result.status == Status::fail || result.status == Status::incomplete) text += "  " + line_of(result) + "\n";
  }
  print(text + "report: " + (folder / "report.md").string() + "\n");
  return verdict.exit_code;
}

AcceptanceOutcome run_or_stop(const fs::path& folder, const Recipe& recipe, const JobDisplay& display) {
  try {
    return run_stages(folder, recipe, display, InterruptNote::noted);
  } catch (const Interrupted&) {
    return {.results = {}, .interrupted = true};
  }
}

}  // namespace

int run_accept(const CommandLine& line) {
  const auto loaded = line.paths.empty() ? load_default(line) : load_from(line);
  if (line.has("dry-run")) return print_recipe(loaded, line);
  const auto folder = run_folder_of(loaded.recipe, line.value("output"));
  check_can_be_accepted(loaded.recipe);
  find_rank_program();
  const InterruptNote note;
  const auto lock = open_run_folder(folder, loaded, /*needs_limits=*/true);
  const auto recipe = recipe_of_run(folder);
  if (recipe.accept != loaded.recipe.accept)
    log_warning(
        "accept.stages and accept.limits stay those with which this run began; give another --output for others");
  const auto outcome = run_or_stop(folder, recipe, display_of(line));
  if (outcome.interrupted) return say_interrupted(line, folder);
  return finish_run(line, folder, read_run(folder, recipe), outcome.results, /*ended=*/true);
}

int run_train(const CommandLine& line) {
  const auto allowed = allowed_changes_of(line);
  const auto loaded = load_from(line);
  if (line.has("dry-run")) return print_recipe(loaded, line);
  const auto folder = training_folder(loaded.recipe, line.value("output"));
  find_rank_program();
  if (has_ended(folder, loaded.recipe, allowed)) {
    if (line.has("json"))
      print(dump_json_pretty({{"exit_code", exit_done}, {"output", folder.string()}, {"seconds", 0}}));
    return exit_done;
  }
  const InterruptNote note;
  const auto lock = open_run_folder(folder, loaded, /*needs_limits=*/false, allowed);
  if (InterruptNote::noted()) return say_interrupted(line, folder);
  const JobRequest request{"train-1", "train", loaded.recipe, loaded.recipe, "", {{"allow_change", allowed}}};
  const auto result = run_job(folder, request, display_of(line));
  const auto job = read_job(folder / "jobs" / "train-1");
  const auto failure = job.failure(job.last_attempt());
  if (failure && failure->interrupted) return say_interrupted(line, folder);
  const int exit_code = !failure                 ? exit_done
                        : failure->error.empty() ? exit_incomplete
                                                 : exit_code_of(error_kind_from_name(failure->error));
  if (!failure) write_checksums(folder);
  if (line.has("json")) {
    Json document{{"exit_code", exit_code}, {"output", folder.string()}, {"seconds", result.seconds}};
    if (failure) document["failure"] = failure->sentence;
    print(dump_json_pretty(document));
  } else {
    print("run folder: " + folder.string() + "\n");
  }
  if (failure) {
    const bool can_go_on = !list_complete(folder / "jobs" / "train-1" / "checkpoints").empty();
    log_error(failure->sentence +
              (can_go_on
                   ? "\nthis goes on with it:\n  " + resume_command(line, folder)
                   : "\nno checkpoint was saved, so there is nothing to go on with: mend the cause and start again"));
  }
  return exit_code;
}

int run_collective(const CommandLine& line) {
  if (!line.paths.empty())
    throw Error(ErrorKind::usage, "collective takes KEY=VALUE only, not \"" + line.paths[0] + "\"");
  auto loaded = load_default(line);
  loaded.recipe.name = "collective";
  loaded.recipe.accept.stages = {"collective"};
  if (line.has("dry-run")) return print_recipe(loaded, line);
  const auto folder = run_folder_of(loaded.recipe, line.value("output"));
  const InterruptNote note;
  find_rank_program();
  const auto lock = begin_run_folder(folder, loaded);
  const auto result = run_job(folder, {"collective-1", "collective", loaded.recipe, loaded.recipe, "", Json::object()},
                              display_of(line));
  const bool job_was_interrupted = result.interrupted_by && result.exit_code != exit_done;
  if (job_was_interrupted || InterruptNote::noted()) {
    if (line.has("json"))
      print(dump_json_pretty({{"output", folder.string()}, {"checks", Json::array()}, {"exit_code", exit_incomplete}}));
    log_warning("interrupted: nothing is known of the collectives; start it again");
    return exit_incomplete;
  }
  const auto results = evaluate_stage("collective", read_run(folder, loaded.recipe));
  write_results(folder / kResults, results);
  write_checksums(folder);
  Json document{{"output", folder.string()}, {"checks", Json::array()}};
  std::string text;
  for (const auto& check : results) {
    document["checks"].push_back(result_to_json(check));
    text += line_of(check) + "\n";
  }
  const auto verdict = verdict_of(results);
  document["exit_code"] = verdict.exit_code;
  const char* words = verdict.exit_code == exit_done
                          ? "the collectives work; this alone proves no throughput and accepts no machine\n"
                          : "the collectives are not proven to work\n";
  print(line.has("json") ? dump_json_pretty(document) : text + words);
  return verdict.exit_code;
}

int run_report(const CommandLine& line) {
  const fs::path folder = line.only_path("RUN_DIR");
  const bool ended = fs::exists(folder / kChecksums);
  if (ended) {
    auto rewritten = report_files();
    rewritten.insert(kResults);
    check_evidence(folder, rewritten);
  } else if (is_unfinished(folder)) {
    log_warning(folder.string() + " is of a run that has not ended: it has no " + kChecksums +
                ", so whether its files were changed since cannot be checked");
  }
  const auto run = read_run(folder, recipe_of_run(folder));
  return finish_run(line, folder, run, evaluate_run(run), ended);
}

}  // namespace assay
