#include <set>
#include <string>
#include <vector>

#include "harness/acceptance/diagnosis.h"
#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/measurements.h"
#include "harness/acceptance/stage_checks.h"
#include "harness/core/units.h"
#include "harness/recipe/enum_names.h"

namespace assay {
namespace {

/// What the checks of this stage look at.
struct TrainView {
  const RunRecord& run;
  const JobRecord& job;   ///< train-1: interrupted and resumed
  const JobRecord& twin;  ///< twin-1: not interrupted
  int attempt;            ///< of train-1, the last
  StageChecks& checks;
};

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

/// The attempt in which a rank was killed on purpose must name that rank and that signal.
void check_failure_named(const TrainView& view) {
  for (int attempt = 1; attempt <= view.job.last_attempt(); ++attempt) {
    const Json* kill = view.job.planned_kill(attempt);
    if (kill == nullptr) continue;
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

void check_load(const TrainView& view) {
  std::optional<double> parameters;
  for (int rank = 0; rank < view.job.world_size(); ++rank) {
    const Json* start = view.job.last(rank, "run", view.attempt);
    parameters = number_in(start, "parameters");
    if (!parameters || view.job.find(rank, "phase", "phase", "load", view.attempt) == nullptr) {
      view.checks.missing("load", rank_name(rank) + " did not report that the model is loaded");
      return;
    }
  }
  const auto planned = number_in(member_of(view.run.estimate, "dry_run"), "parameters");
  auto& result = view.checks.add("load", !planned || *planned == *parameters ? Status::pass : Status::fail);
  result.measured = static_cast<std::int64_t>(*parameters);
  if (planned) result.limit = static_cast<std::int64_t>(*planned);
  result.unit = "parameters";
  if (result.status == Status::fail) result.reason = "another model was loaded than was planned";
}

std::string param_dtype_of(Precision precision) {
  if (precision == Precision::fp32 || precision == Precision::fp16) return std::string(name_of(precision));
  return "bf16";
}

void check_precision(const TrainView& view) {
  const auto planned = param_dtype_of(view.run.recipe.train.precision);
  std::vector<int> others;
  std::string found = planned;
  for (int rank = 0; rank < view.job.world_size(); ++rank) {
    const auto dtype = text_in(view.job.last(rank, "run", view.attempt), "param_dtype");
    if (dtype.empty()) {
      view.checks.missing("precision", rank_name(rank) + " did not report the dtype of its parameters");
      return;
    }
    if (dtype == planned) continue;
    others.push_back(rank);
    found = dtype;
  }
  auto& result = view.checks.add("precision", others.empty() ? Status::pass : Status::fail);
  result.measured = found;
  result.limit = planned;
  result.unit = "dtype of the parameters";
  result.ranks = others;
  if (!others.empty()) result.reason = "parameters are " + found + " and train.precision plans " + planned;
}

/// Calls look(rank, event) for the step events of both jobs' last attempts; false if there is none.
template <typename Look>
bool for_each_step(const TrainView& view, Look look) {
  bool any = false;
  for (const JobRecord* job : {&view.job, &view.twin}) {
    for (int rank = 0; rank < job->world_size(); ++rank) {
      for (const auto* event : job->events(rank, "step", job->last_attempt())) {
        look(rank, *event);
        any = true;
      }
    }
  }
  return any;
}

void check_shape(const TrainView& view) {
  const auto& train = view.run.recipe.train;
  const auto planned = world_size_of(view.run.recipe) * train.micro_batch_size * train.gradient_accumulation_steps *
                       view.run.recipe.data.sequence_length;
  std::optional<double> tokens;
  const bool any = for_each_step(view, [&](int, const Json& event) {
    const auto value = number_in(&event, "tokens");
    if (!tokens || (value && *value != static_cast<double>(planned))) tokens = value;
  });
  if (!any || !tokens) {
    view.checks.missing("shape", "no step reported its tokens");
    return;
  }
  auto& result = view.checks.add("shape", *tokens == static_cast<double>(planned) ? Status::pass : Status::fail);
  result.measured = static_cast<std::int64_t>(*tokens);
  result.limit = planned;
  result.unit = "tokens a step";
  result.reason = std::to_string(world_size_of(view.run.recipe)) + " ranks x " +
                  std::to_string(train.micro_batch_size) + " rows x " +
                  std::to_string(train.gradient_accumulation_steps) + " micro-steps x length " +
                  std::to_string(view.run.recipe.data.sequence_length);
}

void check_forward_backward(const TrainView& view) {
  std::set<int> not_finite;
  std::string missing;
  std::int64_t num_steps = 0;
  const bool any = for_each_step(view, [&](int rank, const Json& event) {
    ++num_steps;
    for (const char* key : {"loss", "grad_norm"}) {
      if (!event.contains(key))
        missing = key;
      else if (event[key].is_null())
        not_finite.insert(rank);
    }
    for (const char* key : {"forward_seconds", "backward_seconds"}) {
      if (number_in(&event, key).value_or(0) <= 0) missing = key;
    }
  });
  if (!not_finite.empty()) {
    auto& result = view.checks.add("forward_backward", Status::fail, "loss or gradient norm is not finite");
    result.ranks.assign(not_finite.begin(), not_finite.end());
  } else if (!any || !missing.empty()) {
    view.checks.missing("forward_backward", any ? "a step has no " + missing : "no step was made");
  } else {
    auto& result = view.checks.add("forward_backward", Status::pass, "loss and gradient norm finite in each");
    result.measured = num_steps;
    result.unit = "steps over all ranks and both jobs";
  }
}

void check_update(const TrainView& view) {
  std::int64_t num_updates = 0, num_skipped = 0;
  for_each_step(view, [&](int rank, const Json& event) {
    if (rank != 0) return;
    (event.value("skipped", false) ? num_skipped : num_updates) += 1;
  });
  const auto before = text_in(view.job.last(0, "run", view.attempt), "state_hash");
  const auto after = text_in(view.job.last(0, "end", view.attempt), "state_hash");
  if (num_updates == 0 || before.empty() || after.empty()) {
    view.checks.missing("accumulate_update", "there is no update, or no state_hash before and after");
    return;
  }
  auto& result = view.checks.add("accumulate_update", before != after ? Status::pass : Status::fail);
  result.measured = num_updates;
  result.unit = "optimizer updates of rank 0";
  result.reason = before == after ? "the updates left parameters and optimizer state as they were"
                                  : std::to_string(view.run.recipe.train.gradient_accumulation_steps) +
                                        " micro-steps each, " + std::to_string(num_skipped) + " skipped";
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
  std::vector<int> idle, disagree;
  for (int rank = 0; rank < view.twin.world_size(); ++rank) {
    std::set<std::int64_t> steps;
    for (const auto* event : view.twin.events(rank, "step")) steps.insert(event->value("step", std::int64_t{0}));
    if (static_cast<std::int64_t>(steps.size()) != max_steps) idle.push_back(rank);
  }
  if (view.twin.world_size() == 0 || view.job.world_size() == 0 || !idle.empty()) {
    auto& result =
        view.checks.missing("all_ranks", "not every rank did each of the " + std::to_string(max_steps) + " steps");
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
  result.limit = world_size_of(view.run.recipe);
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
  if (slope && !result.limit.is_null() && *slope >= result.limit.get<double>()) {
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
  const TrainView view{run, run.job("train-1"), run.job("twin-1"), run.job("train-1").last_attempt(), checks};
  const auto failure = view.attempt > 0 ? view.job.failure(view.attempt) : std::nullopt;
  const bool ended = checks.job_ended("job", view.job, failure ? diagnosis_of(*failure) : "");
  if (ended) checks.job_ended("twin", view.twin);
  check_failure_named(view);
  check_load(view);
  check_precision(view);
  check_shape(view);
  check_forward_backward(view);
  check_update(view);
  check_save(view);
  check_resume(view);
  check_all_ranks(view);
  check_loss(view);
  return checks.take();
}

}  // namespace assay
