// The job fit_trials: the largest value that fits, by training with one value after the other in the same processes.
#include <unistd.h>

#include <algorithm>

#include "harness/core/error.h"
#include "harness/core/host.h"
#include "harness/core/log.h"
#include "harness/memory/allocator_settings.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/fit_question.h"
#include "harness/train/rank_context.h"
#include "harness/train/rank_events.h"
#include "harness/train/training_loop.h"

namespace assay {
namespace {

/// One rank of the search. The ranks go on together: `control_` outlives every trial, each of which has a communicator
/// of its own; a rank that fails drops its own, by which the others fail at once too, and all meet again at control_.
class FitTrials {
 public:
  FitTrials(const Job& job, const Clock& clock, MemoryLedger& ledger, RankEvents& events)
      : job_(job),
        question_(job),
        clock_(clock),
        ledger_(ledger),
        events_(events),
        control_(make_communicator(job.world, job.recipe.parallel.timeout_seconds, clock)),
        group_(*control_) {}

  int run();

 private:
  bool fits(std::int64_t value);
  void normal_step();
  void train(std::int64_t value, std::int64_t num_steps);
  void run_steps(std::int64_t value, std::int64_t num_steps);
  std::vector<RankOutcome> train_on_all(std::int64_t value, std::int64_t num_steps);
  std::string assignment(std::int64_t value) const { return question_.key + "=" + std::to_string(value); }

  const Job& job_;
  FitQuestion question_;
  const Clock& clock_;
  MemoryLedger& ledger_;
  RankEvents& events_;
  std::unique_ptr<Communicator> control_;
  CommunicatorGroup group_;
  std::int64_t num_communicators_ = 0;
  MemoryLedger::IntervalPeak peak_;  ///< of the last training
};

void FitTrials::run_steps(std::int64_t value, std::int64_t num_steps) {
  // First of all, so that whatever fails ends it for the others too.
  const auto communicator = make_communicator(job_.world, job_.recipe.parallel.timeout_seconds, clock_,
                                              "trial-" + std::to_string(++num_communicators_));
  const Recipe recipe = question_.recipe_at(value);
  const ModelConfig config = load_model_config(recipe.model.path, recipe.model.config);
  const auto device = make_cpu_device(static_cast<int>(recipe.train.num_threads));
  const auto rows = make_synthetic_rows(recipe.data.sequence_length, config.vocab_size, recipe.seed);
  Trainer trainer(recipe, config,
                  {*device, *communicator, clock_, ledger_, *rows,
                   [this](Phase phase, std::int64_t step) { events_.enter(phase, step); }, [this] { events_.beat(); }});
  trainer.initialize_parameters();
  LoopFeatures features;
  features.record = [this](const StepRecord& step) {
    peak_.allocated_bytes = std::max(peak_.allocated_bytes, step.peak_allocated_bytes);
    peak_.reserved_bytes = std::max(peak_.reserved_bytes, step.peak_reserved_bytes);
  };
  run_training_loop(trainer, std::min(num_steps, recipe.train.max_steps), features);
}

/// Throws Error; either way nothing of it is left in memory, or that is the error.
void FitTrials::train(std::int64_t value, std::int64_t num_steps) {
  const std::int64_t base_line = ledger_.allocated_bytes();
  std::optional<Error> failure;
  peak_ = {};
  ledger_.take_interval_peak();
  try {
    run_steps(value, num_steps);
  } catch (...) {
    failure = current_error();
  }
  const auto rest = ledger_.take_interval_peak();
  peak_.allocated_bytes = std::max(peak_.allocated_bytes, rest.allocated_bytes);
  peak_.reserved_bytes = std::max(peak_.reserved_bytes, rest.reserved_bytes);
  ledger_.set_phase(Phase::load);
  events_.enter(Phase::load, 0);
  ledger_.allocator().empty_cache();
  if (const std::int64_t left = ledger_.allocated_bytes() - base_line; left != 0) {
    throw Error(ErrorKind::internal, "the trainer of " + assignment(value) + " was taken down and left " +
                                         std::to_string(left) + " bytes of device memory" +
                                         (failure ? std::string(" after ") + failure->what() : ""));
  }
  if (failure) throw *failure;
}

std::vector<RankOutcome> FitTrials::train_on_all(std::int64_t value, std::int64_t num_steps) {
  return try_on_all_ranks(group_, [&] {
    train(value, num_steps);
    return std::string();
  });
}

/// Whatever happened before, training goes on.
void FitTrials::normal_step() {
  const std::int64_t value = job_.options.at("smallest").get<std::int64_t>();
  const auto outcomes = train_on_all(value, 1);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].ok || outcomes[rank].kind == ErrorKind::communication) continue;
    throw Error(outcomes[rank].kind, "a normal step with " + assignment(value) + " failed on rank " +
                                         std::to_string(rank) + ": " + outcomes[rank].text);
  }
  for (const auto& outcome : outcomes) {
    if (!outcome.ok) throw Error(outcome.kind, outcome.text);
  }
  events_.write("check", {{"name", "normal_step"}, {"value", value}, {"allocated_bytes", ledger_.allocated_bytes()}});
}

bool FitTrials::fits(std::int64_t value) {
  const double start = clock_.wall_seconds();
  const auto outcomes = train_on_all(value, question_.num_steps);
  const auto own_peak = peak_;
  std::vector<int> full;
  std::optional<Error> lost;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const auto& outcome = outcomes[rank];
    if (outcome.ok) continue;
    const Error error(outcome.kind, assignment(value) + " on rank " + std::to_string(rank) + ": " + outcome.text);
    if (outcome.kind == ErrorKind::memory) {
      full.push_back(static_cast<int>(rank));
    } else if (outcome.kind == ErrorKind::communication) {
      lost = error;
    } else {
      throw error;
    }
  }
  // A lost connection is what the others see of a rank that is out of memory; alone it says nothing about memory.
  if (lost && full.empty()) throw *lost;
  events_.write("check", {{"name", "fit_trial"},
                          {"value", value},
                          {"fits", full.empty()},
                          {"out_of_memory_ranks", full},
                          {"measured_allocated_bytes", own_peak.allocated_bytes},
                          {"measured_reserved_bytes", own_peak.reserved_bytes},
                          {"seconds", clock_.wall_seconds() - start}});
  if (job_.world.rank == 0) log_info(assignment(value) + (full.empty() ? " fits" : " does not fit"));
  if (!full.empty()) normal_step();
  return full.empty();
}

int FitTrials::run() {
  events_.write("run", {{"job", job_.kind},
                        {"pid", ::getpid()},
                        {"host", host_name()},
                        {"world_size", job_.world.world_size},
                        {"device", "cpu"},
                        {"backend", job_.world.world_size > 1 ? "gloo" : "none"}});
  normal_step();
  const Threshold threshold =
      find_threshold(question_.grid, question_.start, [&](std::int64_t value) { return fits(value); });
  const auto number_or_null = [](std::optional<std::int64_t> value) { return value ? Json(*value) : Json(); };
  events_.write("check", {{"name", "threshold"},
                          {"key", question_.key},
                          {"last_good", number_or_null(threshold.last_good)},
                          {"first_bad", number_or_null(threshold.first_bad)}});
  events_.write("end", {{"exit_code", exit_done}, {"stopped_by", nullptr}});
  return exit_done;
}

/// As for a train job, or of each rank its own: ranks whose devices differ.
AllocatorSettings settings_of(const Job& job) {
  AllocatorSettings settings = allocator_settings(job.recipe);
  if (job.options.contains("capacity_bytes")) {
    const auto& capacities = job.options["capacity_bytes"];
    settings.capacity_bytes = settings.limit_bytes =
        capacities.at(static_cast<std::size_t>(job.world.rank)).get<std::int64_t>();
  }
  return settings;
}

}  // namespace

int run_fit_trials(const Job& job) {
  install_tracking_allocators();
  const SystemClock clock;
  const auto ledger = std::make_shared<MemoryLedger>(settings_of(job));
  const LedgerScope scope(ledger);
  RankEvents events(job, clock, *ledger);
  try {
    return FitTrials(job, clock, *ledger, events).run();
  } catch (...) {
    const Error error = current_error();
    events.error(error);
    throw error;
  }
}

}  // namespace assay
