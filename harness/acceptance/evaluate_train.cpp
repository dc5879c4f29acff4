#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "harness/acceptance/diagnosis.h"
#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/measurements.h"
#include "harness/acceptance/train_checks.h"
#include "harness/core/units.h"

namespace assay {
namespace {

/// The attempt in which a rank was killed on purpose must name that rank and that signal.
void check_failure_named(const TrainView& view) {
  for (int attempt = 1; attempt <= view.job.last_attempt(); ++attempt) {
    const Json* kill = view.job.planned_kill(attempt);
    const auto exit_code = number_in(view.job.launcher_end(attempt), "exit_code");
    const bool seen = kill != nullptr && exit_code && *exit_code != 0;  // it may come too late, or the launcher die
    if (!seen) continue;
    const auto victim = number_in(kill, "victim");
    const Json* cause = view.job.root_cause(attempt);
    const bool named = cause != nullptr && number_in(cause, "rank") == victim &&
                       number_in(cause, "signal") == number_in(kill, "signal");
    auto& result = view.checks.add("failure_named", named ? Status::pass : Status::fail);
    result.measured = text_in(cause, "sentence");
    result.reason = named ? "killed on purpose, and named"
                          : "rank " + format_number(victim.value_or(-1)) +
                                " was killed on purpose, and the launcher did not name it";
    result.seconds = number_in(view.job.launcher_end(attempt), "seconds");
    result.evidence = "jobs/train-1/events/launcher.jsonl";
    return;
  }
  view.checks.missing("failure_named", "no rank was killed on purpose: the job failed or ended before");
}

void check_save(const TrainView& view) {
  const auto max_steps = view.run.recipe.train.max_steps;
  std::set<std::int64_t> expected, found;
  for (auto step = checkpoint_interval_of(view.run.recipe); step <= max_steps;
       step += checkpoint_interval_of(view.run.recipe)) {
    expected.insert(step);
  }
  if (view.run.recipe.checkpoint.save_at_end) expected.insert(max_steps);
  for (const auto* event :
       view.twin.world_size() > 0 ? view.twin.events(0, "checkpoint") : std::vector<const Json*>{}) {
    if (!event->value("restored", false)) found.insert(event->value("saved_step", std::int64_t{0}));
  }
  std::string absent;
  for (const auto step : expected) {
    if (!found.contains(step)) absent += (absent.empty() ? "" : ", ") + std::to_string(step);
  }
  if (!absent.empty()) {
    view.checks.missing("save", "no complete checkpoint of step " + absent);
    return;
  }
  const auto figures = checkpoint_figures_of(view.twin);
  auto& result = view.checks.add("save", Status::pass);
  result.measured = expected.size();
  result.unit = "complete checkpoints";
  result.seconds = figures.save_seconds;
  if (figures.bytes) result.reason = format_bytes(static_cast<std::int64_t>(*figures.bytes)) + " each";
}

void check_resume(const TrainView& view) {
  const auto comparison = compare_resume(view.job, view.twin);
  if (!comparison.missing.empty() || comparison.num_compared == 0) {
    view.checks.missing("resume", comparison.missing.empty() ? "nothing was compared" : comparison.missing);
    return;
  }
  auto& result = view.checks.judge("resume", static_cast<double>(comparison.num_different), view.run.limits,
                                   "resume_difference", "");
  result.ranks = comparison.ranks_that_differ;
  result.reason = std::to_string(comparison.num_compared) + " losses from step " +
                  std::to_string(comparison.first_step) + " on and the final state beside the uninterrupted twin";
  if (!comparison.equal() && result.status == Status::pass) result.status = Status::fail;
  result.reason += comparison.equal()              ? ": equal bit for bit"
                   : comparison.num_different == 0 ? ": the final state differs"
                                                   : ": they differ";
}

void check_all_ranks(const TrainView& view) {
  const auto max_steps = view.run.recipe.train.max_steps;
  const auto planned = world_size_of(view.run.recipe);
  std::vector<int> idle, disagree;
  for (int rank = 0; rank < view.twin.world_size(); ++rank) {
    std::set<std::int64_t> steps;
    for (const auto* event : view.twin.events(rank, "step")) steps.insert(event->value("step", std::int64_t{0}));
    if (static_cast<std::int64_t>(steps.size()) != max_steps) idle.push_back(rank);
  }
  const bool complete = view.twin.world_size() == planned && view.job.world_size() == planned;
  if (!complete || !idle.empty()) {
    auto& result =
        view.checks.missing("all_ranks", "not every one of " + std::to_string(planned) + " ranks did each of the " +
                                             std::to_string(max_steps) + " steps");
    result.ranks = idle;
    return;
  }
  for (int rank = 1; rank < view.twin.world_size(); ++rank) {
    const auto first = view.twin.events(0, "step"), own = view.twin.events(rank, "step");
    for (std::size_t i = 0; i < std::min(first.size(), own.size()); ++i) {
      if (first[i]->value("loss", Json()) == own[i]->value("loss", Json())) continue;
      disagree.push_back(rank);
      break;
    }
  }
  auto& result = view.checks.add("all_ranks", disagree.empty() ? Status::pass : Status::fail);
  result.measured = view.twin.world_size();
  result.limit = planned;
  result.unit = "ranks that did every step";
  result.ranks = disagree;
  result.reason = disagree.empty() ? "the loss of the global batch is the same on all of them"
                                   : "ranks record different losses of the same global batch";
}

void check_loss(const TrainView& view) {
  const auto& job = undisturbed_job(view.run);
  const auto slope = job.done() ? slope_of(losses_of(job)) : std::nullopt;
  auto& result = view.checks.judge("loss_slope", slope, view.run.limits, "loss_slope",
                                   "the job did not end, or has fewer than two finite losses");
  const bool judged = result.status == Status::pass || result.status == Status::fail;
  if (judged && !result.limit.is_null() && *slope >= result.limit.get<double>()) {
    result.status = Status::fail;
    result.reason = "the loss does not fall: check optimizer.learning_rate, the schedule and the data";
  }
  if (view.run.recipe.train.eval_interval == 0) return;
  const Json* last = job.world_size() > 0 ? job.last(0, "eval") : nullptr;
  const auto loss = number_in(last, "loss");
  if (!loss) {
    view.checks.missing("eval_loss", "train.eval_interval is set, and no evaluation loss was recorded");
    return;
  }
  view.checks.add("eval_loss", Status::pass, "last one, on data.eval_path").measured = *loss;
}

}  // namespace

std::vector<Result> evaluate_train(const RunRecord& run) {
  StageChecks checks("train", "jobs/train-1/events");
  const auto& job = run.job("train-1");
  const int attempt = job.last_attempt();
  if (attempt == 0 || job.world_size() == 0) {
    checks.missing("job", "the job was never started");
    return checks.take();
  }
  const TrainView view{run, job, run.job("twin-1"), attempt, checks};
  const auto failure = job.failure(attempt);
  const bool ended = checks.job_ended("job", job, failure ? diagnosis_of(job, *failure) : "");
  if (ended) checks.job_ended("twin", view.twin);
  check_failure_named(view);
  check_steps(view);
  check_save(view);
  check_resume(view);
  check_all_ranks(view);
  check_loss(view);
  return checks.take();
}

}  // namespace assay
