#include <set>
#include <string>
#include <vector>

#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/train_checks.h"
#include "harness/recipe/enum_names.h"

namespace assay {
namespace {

void check_load(const TrainView& view) {
  const auto planned = number_in(member_of(view.run.estimate, "dry_run"), "parameters");
  if (!planned) {
    view.checks.missing("load", "there is no estimate of how many parameters are planned");
    return;
  }
  auto found = *planned;
  std::vector<int> others;
  for (int rank = 0; rank < view.job.world_size(); ++rank) {
    const auto parameters = number_in(view.job.last(rank, "run", view.attempt), "parameters");
    if (!parameters || view.job.find(rank, "phase", "phase", "load", view.attempt) == nullptr) {
      view.checks.missing("load", rank_name(rank) + " did not report that the model is loaded");
      return;
    }
    if (*parameters == *planned) continue;
    others.push_back(rank);
    found = *parameters;
  }
  auto& result = view.checks.add("load", others.empty() ? Status::pass : Status::fail);
  result.measured = static_cast<std::int64_t>(found);
  result.limit = static_cast<std::int64_t>(*planned);
  result.unit = "parameters";
  result.ranks = others;
  if (!others.empty()) result.reason = "another model was loaded than was planned";
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
  auto found = static_cast<double>(planned);
  std::set<int> silent, others;
  const bool any = for_each_step(view, [&](int rank, const Json& event) {
    const auto tokens = number_in(&event, "tokens");
    if (!tokens) silent.insert(rank);
    if (!tokens || *tokens == static_cast<double>(planned)) return;
    others.insert(rank);
    found = *tokens;
  });
  if (others.empty() && (!any || !silent.empty())) {
    auto& result = view.checks.missing("shape", any ? "a step did not report its tokens" : "no step was made");
    result.ranks.assign(silent.begin(), silent.end());
    return;
  }
  auto& result = view.checks.add("shape", others.empty() ? Status::pass : Status::fail);
  result.measured = static_cast<std::int64_t>(found);
  result.limit = planned;
  result.unit = "tokens a step";
  result.ranks.assign(others.begin(), others.end());
  result.reason = std::to_string(world_size_of(view.run.recipe)) + " ranks x " +
                  std::to_string(train.micro_batch_size) + " rows x " +
                  std::to_string(train.gradient_accumulation_steps) + " micro-steps x length " +
                  std::to_string(view.run.recipe.data.sequence_length);
}

void check_forward_backward(const TrainView& view) {
  std::set<int> not_finite;
  std::string missing;
  std::int64_t num_steps = 0, num_overflows = 0;
  const bool any = for_each_step(view, [&](int rank, const Json& event) {
    ++num_steps;
    const bool overflowed = event.value("overflowed", false);  // of fp16: skipped, and the loss scale halved
    num_overflows += overflowed;
    for (const std::string key : {"loss", "grad_norm"}) {
      if (!event.contains(key))
        missing = key;
      else if (event[key].is_null() && !(overflowed && key == "grad_norm"))
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
  } else if (num_overflows == num_steps) {
    view.checks.add("forward_backward", Status::fail, "the fp16 gradients of every step overflowed");
  } else {
    auto& result = view.checks.add("forward_backward", Status::pass, "loss and gradient norm finite in each");
    if (num_overflows > 0) result.reason += ", but " + std::to_string(num_overflows) + " that overflowed in fp16";
    result.measured = num_steps;
    result.unit = "steps over all ranks and both jobs";
  }
}

/// Over the whole of the twin: every rank's parameters must have moved, not only its counters.
void check_update(const TrainView& view) {
  const auto& twin = view.twin;
  std::vector<int> unmoved;
  for (int rank = 0; rank < twin.world_size(); ++rank) {
    const auto before = text_in(twin.last(rank, "run"), "parameters_hash");
    const auto after = text_in(twin.last(rank, "end"), "parameters_hash");
    if (before.empty() || after.empty()) {
      view.checks.missing("accumulate_update", rank_name(rank) + " has no parameters_hash before or after its steps");
      return;
    }
    if (before == after) unmoved.push_back(rank);
  }
  std::int64_t num_updates = 0, num_skipped = 0;
  for (const auto* event : twin.world_size() > 0 ? twin.events(0, "step") : std::vector<const Json*>{})
    (event->value("skipped", false) ? num_skipped : num_updates) += 1;
  if (num_updates == 0) {
    view.checks.missing("accumulate_update", "the uninterrupted job made no update");
    return;
  }
  auto& result = view.checks.add("accumulate_update", unmoved.empty() ? Status::pass : Status::fail);
  result.measured = num_updates;
  result.unit = "optimizer updates of rank 0";
  result.evidence = "jobs/twin-1/events";
  result.ranks = unmoved;
  result.reason = unmoved.empty() ? std::to_string(view.run.recipe.train.gradient_accumulation_steps) +
                                        " micro-steps each, " + std::to_string(num_skipped) + " skipped"
                                  : "the updates left the parameters as they were";
}

}  // namespace

void check_steps(const TrainView& view) {
  check_load(view);
  check_precision(view);
  check_shape(view);
  check_forward_backward(view);
  check_update(view);
}

}  // namespace assay
