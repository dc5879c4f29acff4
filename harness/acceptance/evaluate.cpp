#include "harness/acceptance/evaluate.h"

#include <algorithm>
#include <cmath>

#include "harness/acceptance/stage_checks.h"
#include "harness/core/error.h"
#include "harness/core/units.h"

namespace assay {
namespace {

struct StageRow {
  const char* name;
  std::vector<Result> (*evaluate)(const RunRecord&);
  bool starts_jobs;
};

const std::vector<StageRow>& stage_rows() {
  static const std::vector<StageRow> rows{
      {"machine", evaluate_machine, true},
      {"estimate", evaluate_estimate, true},
      {"collective", evaluate_collective, true},
      {"single", evaluate_single, true},
      {"train", evaluate_train, true},
      {"memory", evaluate_memory, false},
      {"utilization", evaluate_utilization, false},
  };
  return rows;
}

const StageRow& row_of(const std::string& stage) {
  for (const auto& row : stage_rows()) {
    if (stage == row.name) return row;
  }
  throw Error(ErrorKind::recipe, "accept.stages: there is no stage \"" + stage + "\"");
}

/// Whole numbers are written as such: 0, not 0.0.
Json plain_number(double value) {
  if (std::floor(value) == value && std::fabs(value) < 9e15) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

Result& StageChecks::add(const std::string& name, Status status, const std::string& reason) {
  Result result;
  result.check = stage_ + "." + name;
  result.stage = stage_;
  result.status = status;
  result.reason = reason;
  result.evidence = evidence_;
  results_.push_back(std::move(result));
  return results_.back();
}

Result& StageChecks::missing(const std::string& name, const std::string& reason) {
  auto& result = add(name, Status::incomplete, reason);
  result.ran = false;
  return result;
}

Result& StageChecks::judge(const std::string& name, std::optional<double> measured, const Limits& limits,
                           const std::string& limit_name, const std::string& missing_reason) {
  if (!measured) return missing(name, missing_reason);
  const Limit* limit = limits.find(limit_name);
  if (limit == nullptr) {
    auto& result = add(name, Status::incomplete, "the limits file has no " + limit_name);
    result.measured = plain_number(*measured);
    return result;
  }
  const bool met = limit->met_by(*measured);
  const bool judged = limit->kind != LimitKind::info;
  auto& result = add(name, !met ? Status::fail : judged ? Status::pass : Status::skip);
  if (std::isfinite(*measured)) result.measured = plain_number(*measured);
  if (limit->value) result.limit = plain_number(*limit->value);
  result.unit = limit->unit;
  result.margin = limit->margin_of(*measured);
  if (result.status == Status::skip) result.reason = "recorded, not judged";
  if (result.status == Status::fail) result.reason = format_number(*measured) + ", must be " + limit->text();
  return result;
}

Status status_of_failure(const JobFailure& failure) {
  const bool rejects = !failure.error.empty() && exit_code_of(error_kind_from_name(failure.error)) == exit_rejected;
  return rejects ? Status::fail : Status::incomplete;
}

bool StageChecks::job_ended(const std::string& name, const JobRecord& job, const std::string& advice) {
  if (!job.started() || job.last_attempt() == 0) {
    missing(name, "the job was never started");
    return false;
  }
  const auto failure = job.failure(job.last_attempt());
  if (!failure) {
    auto& result = add(name, Status::pass);
    result.measured = 0;
    result.unit = "exit code";
    result.seconds = number_in(job.launcher_end(job.last_attempt()), "seconds");
    return true;
  }
  auto& result = add(name, status_of_failure(*failure), failure->sentence + (advice.empty() ? "" : ". " + advice));
  if (const auto code = number_in(job.launcher_end(job.last_attempt()), "exit_code"))
    result.measured = plain_number(*code);
  result.limit = 0;
  result.unit = "exit code";
  result.ranks = failure->ranks;
  result.ran = false;
  if (!failure->interrupted) result.action = Action::watch;
  return false;
}

const std::vector<std::string>& all_stages() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& row : stage_rows()) list.emplace_back(row.name);
    return list;
  }();
  return names;
}

std::vector<Result> evaluate_stage(const std::string& stage, const RunRecord& run) {
  return row_of(stage).evaluate(run);
}

bool blocks_later_jobs(const std::vector<Result>& results) {
  return std::any_of(results.begin(), results.end(), [](const Result& result) {
    return result.status == Status::fail || (result.status == Status::incomplete && !result.ran);
  });
}

bool can_be_evaluated_when_blocked(const std::string& stage, const RunRecord& run) {
  return !row_of(stage).starts_jobs && run.job("train-1").done();
}

Result not_started(const std::string& stage, const std::string& blocking) {
  StageChecks checks(stage, "");
  auto& result = checks.add("stage", Status::skip, "not started, because stage " + blocking + " did not pass");
  result.ran = false;
  return result;
}

std::vector<Result> stages_left_out(const Recipe& recipe) {
  const auto& chosen = recipe.accept.stages;
  std::vector<Result> results;
  std::string names;
  for (const auto& stage : all_stages()) {
    if (std::find(chosen.begin(), chosen.end(), stage) != chosen.end()) continue;
    StageChecks checks(stage, "");
    checks.add("stage", Status::skip, "left out by accept.stages").ran = false;
    results.push_back(checks.take().front());
    names += (names.empty() ? "" : ", ") + stage;
  }
  if (results.empty()) return results;
  StageChecks checks("accept", "recipe.yaml");
  auto& result = checks.add("stages", Status::incomplete,
                            "accept.stages leaves out " + names + ": what they examine is not known of this machine");
  result.measured = chosen.size();
  result.limit = all_stages().size();
  result.unit = "stages";
  results.push_back(result);
  return results;
}

std::vector<Result> evaluate_run(const RunRecord& run) {
  std::vector<Result> all;
  std::string blocking;
  for (const auto& stage : run.recipe.accept.stages) {
    if (!blocking.empty() && !can_be_evaluated_when_blocked(stage, run)) {
      all.push_back(not_started(stage, blocking));
      continue;
    }
    const auto results = evaluate_stage(stage, run);
    if (blocking.empty() && blocks_later_jobs(results)) blocking = stage;
    all.insert(all.end(), results.begin(), results.end());
  }
  const auto left_out = stages_left_out(run.recipe);
  all.insert(all.end(), left_out.begin(), left_out.end());
  return all;
}

std::int64_t checkpoint_interval_of(const Recipe& recipe) {
  const auto interval = recipe.checkpoint.interval;
  if (interval > 0 && interval < recipe.train.max_steps) return interval;
  return std::max<std::int64_t>(1, recipe.train.max_steps / 2);
}

std::int64_t world_size_of(const Recipe& recipe) { return recipe.parallel.nproc_per_node; }

}  // namespace assay
