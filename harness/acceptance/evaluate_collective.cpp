#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/stage_checks.h"
#include "harness/core/units.h"

namespace assay {
namespace {

constexpr double kNumElements = 1024.0 * 1024.0;

void check_processes(const RunRecord& run, StageChecks& checks) {
  const auto wanted = world_size_of(run.recipe);
  if (run.recipe.device != DeviceChoice::cuda) {
    checks.add("processes", Status::skip, "CPU processes: no device limits their number");
    return;
  }
  const Json* gpus = member_of(run.machine, "gpus");
  const Json* visible = gpus == nullptr ? nullptr : member_of(*gpus, "found");
  if (visible == nullptr) {
    checks.missing("processes", "it is not known how many GPUs are visible");
    return;
  }
  const auto num_gpus = static_cast<std::int64_t>(visible->size());
  auto& result = checks.add("processes", wanted <= num_gpus ? Status::pass : Status::fail);
  result.measured = wanted;
  result.unit = "processes";
  result.limit = num_gpus;
  if (wanted > num_gpus) {
    result.reason =
        std::to_string(wanted) + " processes are planned and " + std::to_string(num_gpus) + " GPUs are visible";
  }
}

/// The line of each rank: where it runs and how much memory is there.
void check_ranks(const JobRecord& job, StageChecks& checks) {
  std::vector<int> silent;
  std::string lines;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const Json* event = job.find(rank, "collective", "operation", "all_reduce", job.last_attempt());
    if (event == nullptr) {
      silent.push_back(rank);
      continue;
    }
    const auto gpu = text_in(event, "gpu");
    const auto memory = number_in(event, "memory_bytes");
    lines += (lines.empty() ? "" : "; ") + ("rank " + std::to_string(rank)) + ": " +
             (gpu.empty() ? text_in(event, "device") : gpu) +
             (memory ? ", " + format_bytes(static_cast<std::int64_t>(*memory)) : ", memory of the machine");
  }
  auto& result = checks.add("ranks", silent.empty() ? Status::pass : Status::incomplete, lines);
  result.measured = job.world_size() - static_cast<int>(silent.size());
  result.limit = job.world_size();
  result.unit = "ranks that reported";
  result.ranks = silent;
}

void check_ones(const RunRecord& run, const JobRecord& job, StageChecks& checks) {
  double worst = 0;
  bool finite = true;
  std::vector<int> wrong;
  std::string missing;
  const Limit* limit = run.limits.find("collective_max_abs_error");
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const Json* event = job.find(rank, "collective", "operation", "all_reduce", job.last_attempt());
    const auto num_wrong = number_in(event, "num_wrong");
    const auto error = number_in(event, "max_abs_error");  // null of a sum that is not finite
    const bool all_elements = number_in(event, "elements").value_or(0) >= kNumElements;
    const bool beyond = error && limit != nullptr && !limit->met_by(*error);
    worst = std::max(worst, error.value_or(0));
    if (num_wrong.value_or(0) > 0 || beyond) {
      wrong.push_back(rank);
      finite &= error.has_value();
    } else if (!num_wrong || !error || !all_elements) {
      missing = "rank " + std::to_string(rank) + " has no all_reduce of 1024 x 1024 ones";
    }
  }
  if (wrong.empty() && !missing.empty()) {
    checks.missing("all_reduce_ones", missing);
    return;
  }
  auto& result = checks.judge("all_reduce_ones", worst, run.limits, "collective_max_abs_error", "");
  result.unit = "largest distance from the world size";
  result.ranks = wrong;
  if (wrong.empty()) return;
  if (!finite) result.measured = nullptr;
  result.status = Status::fail;
  result.reason = "the sum of ones is not the world size: results of this communication cannot be trusted";
  result.healthy = false;
  result.action = Action::isolate;
}

/// Every other operation that was tried: the barrier, and collectives with known results.
void check_others(const JobRecord& job, StageChecks& checks) {
  std::map<std::string, std::set<int>> ranks_of, wrong_of;
  ranks_of["barrier"];
  for (int rank = 0; rank < job.world_size(); ++rank) {
    for (const auto* event : job.events(rank, "collective", job.last_attempt())) {
      const auto operation = text_in(event, "operation");
      if (operation == "all_reduce" || operation.empty()) continue;
      const auto num_wrong = number_in(event, "num_wrong");
      if (!num_wrong) continue;
      ranks_of[operation].insert(rank);
      if (*num_wrong > 0) wrong_of[operation].insert(rank);
    }
  }
  for (const auto& [operation, ranks] : ranks_of) {
    if (static_cast<int>(ranks.size()) < job.world_size()) {
      checks.missing(operation, std::to_string(job.world_size() - static_cast<int>(ranks.size())) +
                                    " ranks did not report it, with its num_wrong");
      continue;
    }
    const auto& wrong = wrong_of[operation];
    auto& result = checks.add(operation, wrong.empty() ? Status::pass : Status::fail);
    result.measured = ranks.size() - wrong.size();
    result.limit = job.world_size();
    result.unit = "ranks that passed it";
    result.ranks.assign(wrong.begin(), wrong.end());
    if (wrong.empty()) continue;
    result.reason = "wrong elements: bandwidth of this operation says nothing";
    result.healthy = false;
    result.action = Action::isolate;
  }
}

}  // namespace

std::vector<Result> evaluate_collective(const RunRecord& run) {
  StageChecks checks("collective", "jobs/collective-1/events");
  const auto& job = run.job("collective-1");
  check_processes(run, checks);
  if (!checks.job_ended("job", job)) return checks.take();
  if (job.world_size() != world_size_of(run.recipe)) {
    checks.missing("ranks", std::to_string(job.world_size()) + " ranks took part and " +
                                std::to_string(world_size_of(run.recipe)) + " are planned");
    return checks.take();
  }
  check_ranks(job, checks);
  check_ones(run, job, checks);
  check_others(job, checks);
  return checks.take();
}

}  // namespace assay
