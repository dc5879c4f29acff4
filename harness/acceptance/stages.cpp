#include "harness/acceptance/stages.h"

#include <algorithm>

#include "harness/acceptance/estimate.h"
#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/log.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// Starts what a stage needs; each function returns true if the user interrupted it.
class StageJobs {
 public:
  StageJobs(fs::path folder, const Recipe& recipe, JobDisplay display)
      : folder_(std::move(folder)), recipe_(recipe), display_(display) {}

  /// What a damaged file of an earlier call said, where the recipe says it too.
  void mend() {
    if (fs::exists(estimate_file())) start_estimate();
    if (fs::exists(folder_ / "jobs" / "single-1")) reduced_model_ = reduced_model_of(recipe_);
    for (const auto& request : {collective(), single(), train(), twin()}) mend_job_file(folder_, request);
  }

  bool start(const std::string& stage) {
    if (stage == "machine" || stage == "estimate") return start_estimate();
    if (stage == "collective") return run(collective());
    if (stage == "single") {
      reduced_model_ = reduced_model_of(recipe_);
      return run(single());
    }
    if (stage == "train") return start_train();
    return false;
  }

 private:
  JobRequest request(const std::string& name, const std::string& kind, const Recipe& of_job) const {
    return {name, kind, of_job, recipe_, reduced_model_, Json::object()};
  }
  JobRequest collective() const { return request("collective-1", "collective", recipe_); }
  JobRequest single() const { return request("single-1", "train", single_recipe(recipe_)); }
  JobRequest train() const { return request("train-1", "train", train_recipe(recipe_)); }
  JobRequest twin() const { return request("twin-1", "train", twin_recipe(recipe_)); }
  fs::path estimate_file() const { return folder_ / "jobs" / "estimate-1" / "estimate.json"; }

  bool run(const JobRequest& request) {
    const auto result = run_job(folder_, request, display_);
    refuse_mistake(read(request.name));
    return result.interrupted_by.has_value();
  }

  /// What the user has to mend says nothing about the machine: no later stage is of use.
  static void refuse_mistake(const JobRecord& job) {
    const auto failure = job.failure(job.last_attempt());
    if (!failure || failure->error.empty()) return;
    const auto kind = error_kind_from_name(failure->error);
    if (exit_code_of(kind) == exit_usage) throw Error(kind, job.name + ": " + failure->sentence);
  }

  bool start_estimate() {
    const auto file = estimate_file();
    if (is_whole(file)) return false;
    make_folders(file.parent_path());
    write_file_durably(file, dump_json_pretty(make_estimate(recipe_)));
    return false;
  }

  /// It is made anew from the recipe alone, so a damaged one is no loss.
  static bool is_whole(const fs::path& estimate) {
    return fs::exists(estimate) && Json::parse(read_text_file(estimate), nullptr, false).is_object();
  }

  /// train-1 with one planned kill and its resume, then the twin without.
  bool start_train() {
    for (auto job = read("train-1"); !job.done(); job = read("train-1")) {
      bool killed_before = false;
      for (int attempt = 1; attempt <= job.last_attempt(); ++attempt)
        killed_before |= job.ended_by_planned_kill(attempt);
      const auto result = run_attempt(folder_, train(), display_, !killed_before);
      if (result.interrupted_by) return true;
      const auto after = read("train-1");
      if (after.done()) break;
      if (!after.ended_by_planned_kill(after.last_attempt())) {
        refuse_mistake(after);
        return false;
      }
      log_info("train-1 is started again and resumes from its newest complete checkpoint");
    }
    return start_twin();
  }

  /// It must not be interrupted, so one that was begins anew.
  bool start_twin() {
    if (!read("twin-1").done()) fs::remove_all(folder_ / "jobs" / "twin-1");
    return run(twin());
  }

  JobRecord read(const std::string& name) const { return read_job(folder_ / "jobs" / name); }

  fs::path folder_;
  const Recipe& recipe_;
  JobDisplay display_;
  std::string reduced_model_;
};

std::vector<Result> of_stage(const std::vector<Result>& results, const std::string& stage) {
  std::vector<Result> found;
  std::copy_if(results.begin(), results.end(), std::back_inserter(found),
               [&](const Result& result) { return result.stage == stage; });
  return found;
}

/// Results are made again from the files of the jobs, which are what counts.
std::vector<Result> results_before(const fs::path& file) {
  try {
    return read_results(file);
  } catch (const Error& error) {
    log_warning(std::string(error.what()) + "; all stages are evaluated again");
    return {};
  }
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : dump_json(value); }

}  // namespace

std::string line_of(const Result& result) {
  auto text = std::string(name_of(result.status));
  text.resize(12, ' ');
  text += result.check;
  if (text.size() < 40) text.resize(40, ' ');
  if (!result.measured.is_null()) text += "  " + text_of(result.measured);
  if (!result.unit.empty() && !result.measured.is_null()) text += " " + result.unit;
  if (!result.limit.is_null()) text += " (limit " + text_of(result.limit) + ")";
  if (!result.reason.empty()) text += ": " + result.reason;
  return text;
}

AcceptanceOutcome run_stages(const fs::path& folder, const Recipe& recipe, const JobDisplay& display,
                             const std::function<bool()>& interrupted) {
  AcceptanceOutcome outcome;
  outcome.results = results_before(folder / "results.jsonl");
  const auto& stages = recipe.accept.stages;
  std::erase_if(outcome.results, [&](const Result& result) {  // added at the end
    return std::find(stages.begin(), stages.end(), result.stage) == stages.end();
  });
  StageJobs jobs(folder, recipe, display);
  jobs.mend();
  std::string blocking;
  for (const auto& stage : stages) {
    auto results = of_stage(outcome.results, stage);
    if (!results.empty()) {
      log_info("stage " + stage + " is done already");
    } else {
      log_info("stage " + stage);
      if (!blocking.empty() && !can_be_evaluated_when_blocked(stage, read_run(folder, recipe))) {
        results = {not_started(stage, blocking)};
      } else {
        outcome.interrupted = interrupted() || (blocking.empty() && jobs.start(stage)) || interrupted();
        if (outcome.interrupted) return outcome;
        results = evaluate_stage(stage, read_run(folder, recipe));
      }
      for (const auto& result : results) log_info("  " + line_of(result));
      outcome.results.insert(outcome.results.end(), results.begin(), results.end());
      write_results(folder / "results.jsonl", outcome.results);
    }
    if (blocking.empty() && blocks_later_jobs(results)) blocking = stage;
  }
  for (const auto& result : stages_left_out(recipe)) {
    log_info("  " + line_of(result));
    outcome.results.push_back(result);
  }
  return outcome;
}

}  // namespace assay
