#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "harness/acceptance/measurements.h"
#include "harness/acceptance/stage_checks.h"
#include "harness/core/memory_scope.h"
#include "harness/core/units.h"

namespace assay {
namespace {

/// Bytes of one kind that a dry run predicted beside what a rank measured.
struct Deviations {
  double largest = 0;      ///< measured minus predicted, the one furthest from 0
  std::vector<int> ranks;  ///< that deviate
  std::string words;
  std::string missing;  ///< what has no measurement
};

void compare(int rank, const std::string& name, std::optional<double> measured, double predicted, Deviations& found) {
  const auto what = "rank " + std::to_string(rank) + (name.empty() ? "" : " " + name);
  if (!measured) {
    found.missing = what + " was not measured";
    return;
  }
  const double deviation = *measured - predicted;
  if (deviation == 0) return;
  if (std::fabs(deviation) > std::fabs(found.largest)) found.largest = deviation;
  if (found.ranks.empty() || found.ranks.back() != rank) found.ranks.push_back(rank);
  found.words += (found.words.empty() ? "" : "; ") + what + ": measured " + format_number(*measured) + ", dry run " +
                 format_number(predicted);
}

/// Compares the total, or each entry of an object of the dry run, on every rank.
Deviations compare_all(const JobRecord& job, const Json& dry_run, const std::string& predicted_key,
                       const std::string& measured_key) {
  Deviations found;
  if (!dry_run.is_object() || !dry_run.contains(predicted_key)) {
    found.missing = "the dry run has no " + predicted_key;
    return found;
  }
  const Json& predicted = dry_run[predicted_key];
  if (job.world_size() == 0) found.missing = "there was no training job";
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const Json* memory = job.last(rank, "memory", job.last_attempt());
    if (!predicted.is_object()) {
      compare(rank, "", number_in(memory, measured_key), predicted.get<double>(), found);
      continue;
    }
    const Json* measured = memory != nullptr && memory->contains(measured_key) ? &(*memory)[measured_key] : nullptr;
    for (const auto& [name, value] : predicted.items()) {
      const bool not_in_dry_run = name == name_of(Phase::save) || name == name_of(Phase::restore);
      if (predicted_key == "by_phase" && not_in_dry_run) continue;
      compare(rank, name, number_in(measured, name), value.get<double>(), found);
    }
  }
  return found;
}

void judge_deviations(StageChecks& checks, const std::string& name, const Deviations& found, const Limits& limits) {
  const auto measured = found.missing.empty() ? std::optional(found.largest) : std::nullopt;
  auto& result = checks.judge(name, measured, limits, "memory_deviation", found.missing);
  if (!measured) return;
  result.ranks = found.ranks;
  result.reason = found.words.empty() ? "measured equals the dry run" : found.words;
}

struct MeasuredPeaks {
  std::vector<double> bytes;  ///< of each rank
  std::string missing;        ///< why there are not all of them; empty: they are there
};

MeasuredPeaks measured_peaks(const JobRecord& job, const std::string& field) {
  MeasuredPeaks peaks;
  if (job.world_size() == 0) peaks.missing = "there was no training job";
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const auto measured = number_in(job.last(rank, "memory", job.last_attempt()), field);
    if (!measured) peaks.missing = "rank " + std::to_string(rank) + " was not measured";
    peaks.bytes.push_back(measured.value_or(0));
  }
  return peaks;
}

double largest_of(const MeasuredPeaks& peaks) { return *std::max_element(peaks.bytes.begin(), peaks.bytes.end()); }

void check_formula(const RunRecord& run, const MeasuredPeaks& peaks, StageChecks& checks) {
  const auto total = number_in(member_of(run.estimate, "formula"), "total");
  std::optional<double> deviation;
  if (total && peaks.missing.empty() && largest_of(peaks) > 0) deviation = *total / largest_of(peaks) - 1;
  auto& result = checks.judge("formula", deviation, run.limits, "formula_deviation",
                              peaks.missing.empty() ? "there is no formula" : peaks.missing);
  if (deviation) result.reason = "closed formula over the largest measured peak, minus 1";
}

void check_capacity(const RunRecord& run, const MeasuredPeaks& peaks, StageChecks& checks) {
  if (!run.recipe.device_memory_bytes) return;
  if (!peaks.missing.empty()) {
    checks.missing("capacity", peaks.missing);
    return;
  }
  const auto capacity = *run.recipe.device_memory_bytes;
  auto& result = checks.add("capacity", Status::pass, "reserved bytes of the fullest rank");
  result.measured = static_cast<std::int64_t>(largest_of(peaks));
  result.limit = capacity;
  result.unit = "bytes";
  for (std::size_t rank = 0; rank < peaks.bytes.size(); ++rank) {
    if (peaks.bytes[rank] > static_cast<double>(capacity)) result.ranks.push_back(static_cast<int>(rank));
  }
  if (!result.ranks.empty()) result.status = Status::fail;
}

/// A figure that ranks are compared by.
struct Balance {
  std::string name;
  std::function<std::optional<double>(const RankUtilization&)> figure;
  std::string median_limit;  ///< of the lowest rank over the median of all
  std::string floor_limit;   ///< of the lowest rank; empty: none
};

void check_balance(const RunRecord& run, const std::vector<RankUtilization>& rows, const Balance& balance,
                   StageChecks& checks) {
  const auto& name = balance.name;
  std::vector<double> values;
  for (const auto& row : rows) {
    const auto value = balance.figure(row);
    if (!value) {
      checks.missing(name, "rank " + std::to_string(row.rank) + " has no " + name);
      return;
    }
    values.push_back(*value);
  }
  const auto lowest = values.empty() ? std::nullopt : std::optional(*std::min_element(values.begin(), values.end()));
  const auto median = median_of(values);
  auto name_ranks = [&](Result& result, double threshold) {
    if (result.status != Status::fail) return;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < threshold) result.ranks.push_back(rows[i].rank);
    }
    for (const auto rank : result.ranks)
      result.reason +=
          "; rank " + std::to_string(rank) + " has " + format_number(values[static_cast<std::size_t>(rank)]);
    result.healthy = false;
    result.action = Action::watch;
  };
  const auto ratio = lowest && median && *median > 0 ? std::optional(*lowest / *median) : std::nullopt;
  auto& of_median = checks.judge(name + "_of_median", ratio, run.limits, balance.median_limit, "no rank was measured");
  if (ratio && !of_median.limit.is_null()) name_ranks(of_median, of_median.limit.get<double>() * *median);
  if (balance.floor_limit.empty()) return;
  auto& floor = checks.judge(name, lowest, run.limits, balance.floor_limit, "no rank was measured");
  if (!lowest) return;
  if (!floor.limit.is_null()) name_ranks(floor, floor.limit.get<double>());
  if (*std::max_element(values.begin(), values.end()) > 1 && floor.status == Status::pass) {
    floor.status = Status::incomplete;
    floor.reason = "a value above 1 cannot be: the ceiling was not measured properly";
  }
}

}  // namespace

namespace {

/// From the second step on all steps are alike: if what is reserved still grows, cached memory is lost to
/// fragmentation, and a longer run may end out of memory. Watched, not judged.
void check_reserved_growth(const JobRecord& job, StageChecks& checks) {
  std::int64_t largest = 0;
  std::vector<int> ranks;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const auto steps = job.events(rank, "step", job.last_attempt());
    const auto peak_of = [&](const Json* step) { return number_in(step, "peak_reserved_bytes"); };
    if (steps.size() < 3) {
      checks.add("reserved_growth", Status::skip, "fewer than three steps");
      return;
    }
    const auto second = peak_of(steps[1]);
    const auto last = peak_of(steps.back());
    if (!second || !last) {
      checks.missing("reserved_growth", "rank " + std::to_string(rank) + " does not say what its steps reserved");
      return;
    }
    const auto growth = static_cast<std::int64_t>(*last - *second);
    if (growth > 0) ranks.push_back(rank);
    largest = std::max(largest, growth);
  }
  auto& result = checks.add("reserved_growth", Status::pass,
                            largest > 0 ? "reserved bytes grow from step to step: look at the allocator's settings"
                                        : "no step reserves more than the second");
  result.measured = largest;
  result.unit = "bytes";
  result.ranks = ranks;
  if (largest > 0) result.action = Action::watch;
}

}  // namespace

std::vector<Result> evaluate_memory(const RunRecord& run) {
  const auto& job = undisturbed_job(run);
  StageChecks checks("memory", "jobs/" + (job.name.empty() ? "train-1" : job.name) + "/events");
  const Json dry_run = member_of(run.estimate, "dry_run") ? *member_of(run.estimate, "dry_run") : Json();
  judge_deviations(checks, "allocated", compare_all(job, dry_run, "peak_allocated_bytes", "measured_allocated_bytes"),
                   run.limits);
  judge_deviations(checks, "reserved", compare_all(job, dry_run, "peak_reserved_bytes", "measured_reserved_bytes"),
                   run.limits);
  judge_deviations(checks, "by_category", compare_all(job, dry_run, "by_category", "by_category"), run.limits);
  judge_deviations(checks, "by_phase", compare_all(job, dry_run, "by_phase", "by_phase"), run.limits);
  check_reserved_growth(job, checks);
  check_formula(run, measured_peaks(job, "measured_allocated_bytes"), checks);
  check_capacity(run, measured_peaks(job, "measured_reserved_bytes"), checks);
  return checks.take();
}

std::vector<Result> evaluate_utilization(const RunRecord& run) {
  const auto& job = undisturbed_job(run);
  StageChecks checks("utilization", "jobs/" + (job.name.empty() ? "train-1" : job.name) + "/events");
  const auto rows = utilization_of(job, job.last_attempt());
  // A rank that is slow in all it does has a share and a fraction like the others': only its speeds give it away.
  const std::vector<Balance> balances{
      {"compute_share", [](const auto& row) { return row.compute_share; }, "share_of_median", ""},
      {"gemm_gflops", [](const auto& row) { return row.gemm_gflops; }, "speed_of_median", ""},
      {"model_gflops", [](const auto& row) { return row.model_gflops; }, "speed_of_median", ""},
      {"ceiling_fraction", [](const auto& row) { return row.ceiling_fraction; }, "share_of_median", "ceiling_fraction"},
  };
  for (const auto& balance : balances) check_balance(run, rows, balance, checks);
  return checks.take();
}

}  // namespace assay
