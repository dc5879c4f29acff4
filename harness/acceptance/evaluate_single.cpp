#include <array>
#include <string>
#include <vector>

#include "harness/acceptance/diagnosis.h"
#include "harness/acceptance/stage_checks.h"
#include "harness/core/memory_scope.h"
#include "harness/core/units.h"

namespace assay {
namespace {

constexpr std::array<Phase, 6> kPhases{Phase::load,       Phase::forward, Phase::backward,
                                       Phase::accumulate, Phase::update,  Phase::save};

std::size_t position_of(const std::string& phase) {
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    if (name_of(kPhases[i]) == phase) return i;
  }
  return kPhases.size();
}

/// Peak of a phase: from its own event, else from the memory event at the end.
std::optional<double> peak_of(const JobRecord& job, const std::string& phase) {
  const int attempt = job.last_attempt();
  std::optional<double> largest;
  for (const auto* event : job.events(0, "phase", attempt)) {
    if (text_in(event, "phase") != phase) continue;
    const auto peak = number_in(event, "peak_allocated_bytes");
    if (peak) largest = std::max(largest.value_or(0), *peak);
  }
  const Json* memory = job.last(0, "memory", attempt);
  if (!largest && memory != nullptr && memory->contains("by_phase")) largest = number_in(&(*memory)["by_phase"], phase);
  return largest;
}

/// Time spent in a phase: its events count up.
std::optional<double> seconds_of(const JobRecord& job, const std::string& phase) {
  std::optional<double> seconds;
  for (const auto* event : job.events(0, "phase", job.last_attempt())) {
    if (text_in(event, "phase") == phase) seconds = number_in(event, "seconds");
  }
  return seconds;
}

void check_phase(const RunRecord& run, const JobRecord& job, const std::optional<JobFailure>& failure, std::size_t i,
                 StageChecks& checks) {
  const auto name = std::string(name_of(kPhases[i]));
  const auto failed_at = failure ? position_of(failure->phase) : kPhases.size();
  const bool one_micro_step = run.recipe.train.gradient_accumulation_steps == 1;
  if (failure && i == failed_at) {
    auto& result =
        checks.add(name, status_of_failure(*failure), failure->sentence + ". " + diagnosis_of(job, *failure));
    result.ran = false;
    return;
  }
  const auto peak = peak_of(job, name);
  if (peak) {
    auto& result = checks.add(name, Status::pass, "peak " + format_bytes(static_cast<std::int64_t>(*peak)));
    result.measured = static_cast<std::int64_t>(*peak);
    result.unit = "bytes";
    result.seconds = seconds_of(job, name);
  } else if (kPhases[i] == Phase::accumulate && one_micro_step) {
    checks.add(name, Status::skip, "train.gradient_accumulation_steps is 1");
  } else if (failure && i > failed_at) {
    checks.add(name, Status::skip, "not reached, because phase " + failure->phase + " failed").ran = false;
  } else {
    checks.missing(name, "the peak of this phase was not measured");
  }
}

}  // namespace

std::vector<Result> evaluate_single(const RunRecord& run) {
  StageChecks checks("single", "jobs/single-1/events/rank_00000.jsonl");
  const auto& job = run.job("single-1");
  if (!job.started() || job.last_attempt() == 0) {
    checks.missing("job", "the job was never started");
    return checks.take();
  }
  const auto failure = job.failure(job.last_attempt());
  checks.job_ended("job", job, failure ? diagnosis_of(job, *failure) : "");
  for (std::size_t i = 0; i < kPhases.size(); ++i) check_phase(run, job, failure, i, checks);
  const Json* memory = job.last(0, "memory", job.last_attempt());
  for (const auto& [name, what] : {std::pair<std::string, std::string>{
                                       "reserved_minus_allocated", "peak of reserved minus peak of allocated bytes"},
                                   {"largest_free_block", "at the end of the job"}}) {
    const auto bytes = number_in(memory, name + "_bytes");
    if (!bytes) {
      checks.missing(name, "the job did not tell it");
      continue;
    }
    auto& result = checks.add(name, Status::pass, what);
    result.measured = static_cast<std::int64_t>(*bytes);
    result.unit = "bytes";
  }

  std::string changes;
  const Json listed = job.job.value("changes", Json::array());
  for (const auto& change : listed) changes += (changes.empty() ? "" : "; ") + change.get<std::string>();
  if (const auto reduced = text_in(&job.job, "reduced_model"); !reduced.empty()) {
    changes +=
        (changes.empty() ? "" : "; ") + reduced + ": a reduced model is not acceptance evidence for the full one";
  }
  auto& differences = checks.add("differences", Status::pass, changes.empty() ? "none" : changes);
  differences.measured = listed.size();
  differences.unit = "keys that differ from the target recipe";
  differences.evidence = "jobs/single-1/job.json";
  return checks.take();
}

}  // namespace assay
