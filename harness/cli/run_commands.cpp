#include "harness/cli/run_commands.h"

#include <cstdio>
#include <filesystem>

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
#include "harness/recipe/recipe_json.h"
#include "harness/report/report.h"
#include "model/model_config.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultRecipe = "recipes/tiny_cpu.yaml";

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

JobDisplay display_of(const CommandLine& line) {
  constexpr int kHideStdout = 1;
  return {.echo = !line.has("quiet"), .hidden_streams = line.has("json") ? kHideStdout : 0};
}

/// Begins the run folder of a command, or goes on with an unfinished one. Nothing is created for a recipe whose model
/// folder or rank program is not there.
void open_run_folder(const fs::path& folder, const LoadedRecipe& loaded,
                     const std::vector<std::string>& allowed_changes = {}) {
  find_rank_program();
  load_model_config(loaded.recipe.model.path, loaded.recipe.model.config);
  if (is_unfinished(folder)) {
    check_same_recipe(folder, loaded.recipe, allowed_changes);
    log_info("going on with the unfinished run in " + folder.string());
  } else {
    begin_run_folder(folder, loaded);
    log_info("run folder " + folder.string());
  }
  link_main_job(folder, "train-1");
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
  return line.has("allow-change") ? line.options.at("allow-change") : std::vector<std::string>();
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

/// Writes results and reports of an evaluated run and shows the verdict.
int finish_run(const CommandLine& line, const fs::path& folder, const RunRecord& run,
               const std::vector<Result>& results) {
  write_results(folder / "results.jsonl", results);
  const auto report = write_reports(folder, run, results);
  write_checksums(folder);
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

/// A training that was run to its end.
bool has_ended(const fs::path& folder) {
  return fs::exists(folder / "recipe.yaml") && !is_unfinished(folder) && read_job(folder / "jobs" / "train-1").done();
}

fs::path output_of(const CommandLine& line, const Recipe& recipe) {
  const auto given = line.value("output");
  return given ? fs::path(*given) : default_run_folder(recipe);
}

}  // namespace

int run_accept(const CommandLine& line) {
  const auto loaded = load_from(line, kDefaultRecipe);
  if (line.has("dry-run")) return print_recipe(loaded, line);
  const auto folder = output_of(line, loaded.recipe);
  check_can_be_accepted(loaded.recipe);
  const InterruptNote note;
  open_run_folder(folder, loaded);
  const auto recipe = recipe_of_run(folder);
  if (recipe.accept != loaded.recipe.accept)
    log_warning("accept.stages and accept.limits stay those with which this run began; give another --output for others");
  const auto outcome = run_stages(folder, recipe, display_of(line), InterruptNote::noted);
  if (outcome.interrupted) return say_interrupted(line, folder);
  return finish_run(line, folder, read_run(folder, recipe), outcome.results);
}

int run_train(const CommandLine& line) {
  const auto loaded = load_from(line);
  if (line.has("dry-run")) return print_recipe(loaded, line);
  auto folder = output_of(line, loaded.recipe);
  if (!line.has("output") && loaded.recipe.resume == "auto") {
    const auto unfinished = find_unfinished_training("runs", recipe_hash(loaded.recipe));
    if (unfinished) folder = *unfinished;
  }
  const auto allowed = allowed_changes_of(line);
  if (has_ended(folder)) {
    check_same_recipe(folder, loaded.recipe, allowed);
    log_info("nothing to do: the training in " + folder.string() + " has ended");
    if (line.has("json"))
      print(dump_json_pretty({{"exit_code", exit_done}, {"output", folder.string()}, {"seconds", 0}}));
    return exit_done;
  }
  const InterruptNote note;
  open_run_folder(folder, loaded, allowed);
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
  if (failure) log_error(failure->sentence + "\nthis goes on with it:\n  " + resume_command(line, folder));
  return exit_code;
}

int run_collective(const CommandLine& line) {
  auto with_recipe = line;
  with_recipe.paths = {kDefaultRecipe};
  if (!line.paths.empty())
    throw Error(ErrorKind::usage, "collective takes KEY=VALUE only, not \"" + line.paths[0] + "\"");
  auto loaded = load_from(with_recipe);
  loaded.recipe.name = "collective";
  loaded.recipe.accept.stages = {"collective"};
  if (line.has("dry-run")) return print_recipe(loaded, line);
  const auto folder = output_of(line, loaded.recipe);
  const InterruptNote note;
  find_rank_program();
  begin_run_folder(folder, loaded);
  const auto result = run_job(folder, {"collective-1", "collective", loaded.recipe, loaded.recipe, "", Json::object()},
                              display_of(line));
  if (result.interrupted_by || InterruptNote::noted()) return say_interrupted(line, folder);
  const auto results = evaluate_stage("collective", read_run(folder, loaded.recipe));
  write_results(folder / "results.jsonl", results);
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
  const auto run = read_run(folder, recipe_of_run(folder));
  return finish_run(line, folder, run, evaluate_run(run));
}

}  // namespace assay
