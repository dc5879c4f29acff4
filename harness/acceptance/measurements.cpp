#include "harness/acceptance/measurements.h"

#include <algorithm>
#include <set>

namespace assay {
namespace {

using ByStep = std::map<std::int64_t, double>;

/// A field of one rank's events of one kind by step; a later event's word before an earlier one's.
ByStep by_step(const JobRecord& job, int rank, std::string_view kind, const std::string& key, int attempt) {
  ByStep values;
  for (const auto* event : job.events(rank, kind, attempt)) {
    if (const auto value = number_in(event, key)) values[event->value("step", std::int64_t{0})] = *value;
  }
  return values;
}

/// The largest over all ranks; steps that a rank lacks are left out.
ByStep slowest(const JobRecord& job, std::string_view kind, const std::string& key, int attempt) {
  ByStep largest = by_step(job, 0, kind, key, attempt);
  for (int rank = 1; rank < job.world_size(); ++rank) {
    const auto values = by_step(job, rank, kind, key, attempt);
    std::erase_if(largest, [&](const auto& row) { return !values.contains(row.first); });
    for (auto& [step, value] : largest) value = std::max(value, values.at(step));
  }
  return largest;
}

double value_or_zero(const ByStep& values, std::int64_t step) {
  const auto found = values.find(step);
  return found == values.end() ? 0 : found->second;
}

void add(std::optional<double>& sum, std::optional<double> value) {
  sum = sum && value ? std::optional(*sum + *value) : std::nullopt;
}

}  // namespace

std::optional<double> median_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Throughput throughput_of(const JobRecord& job, int attempt) {
  Throughput result;
  if (!job.started() || job.world_size() == 0) {
    result.reason = "there was no training job";
    return result;
  }
  const auto steps = job.events(0, "step", attempt);
  if (steps.size() <= kWarmupSteps) {
    result.reason = std::to_string(steps.size()) + " steps, and the first " + std::to_string(kWarmupSteps) +
                    " are warm-up: no step is left to time";
    return result;
  }
  const auto step_seconds = slowest(job, "step", "step_seconds", attempt);
  const auto recompute_seconds = slowest(job, "step", "recompute_seconds", attempt);
  const auto save_seconds = slowest(job, "step", "save_seconds", attempt);
  const auto eval_seconds = slowest(job, "eval", "seconds", attempt);
  std::vector<double> times, recompute_times;
  std::optional<double> slots = 0, real = 0, trained = 0;
  double step_time = 0, other_time = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto step = steps[i]->value("step", std::int64_t{0});
    if (i < kWarmupSteps) {
      result.excluded_steps.push_back(step);
      continue;
    }
    const double seconds = value_or_zero(step_seconds, step);
    if (seconds <= 0) {
      result.reason = "step " + std::to_string(step) + " has no step_seconds on every rank";
      return result;
    }
    times.push_back(seconds);
    if (recompute_seconds.contains(step)) recompute_times.push_back(recompute_seconds.at(step));
    step_time += seconds;
    other_time += value_or_zero(save_seconds, step) + value_or_zero(eval_seconds, step);
    add(slots, number_in(steps[i], "tokens"));
    add(real, number_in(steps[i], "real_tokens"));
    add(trained, number_in(steps[i], "loss_tokens"));
  }
  const auto num_timed = static_cast<double>(times.size());
  result.step_seconds = median_of(times);
  result.recompute_seconds = median_of(recompute_times);
  auto per_second = [&](std::optional<double> tokens) -> std::optional<double> {
    return tokens ? std::optional(*tokens / num_timed / *result.step_seconds) : std::nullopt;
  };
  result.tokens_per_second = per_second(slots);
  result.real_tokens_per_second = per_second(real);
  result.trained_tokens_per_second = per_second(trained);
  if (slots) result.net_tokens_per_second = *slots / (step_time + other_time);
  return result;
}

std::map<std::int64_t, std::optional<double>> losses_of(const JobRecord& job) {
  std::map<std::int64_t, std::optional<double>> losses;
  if (job.world_size() == 0) return losses;
  for (const auto* event : job.events(0, "step")) {
    losses[event->value("step", std::int64_t{0})] = number_in(event, "loss");
  }
  return losses;
}

std::optional<double> slope_of(const std::map<std::int64_t, std::optional<double>>& losses) {
  if (losses.size() < 2) return std::nullopt;
  const auto count = static_cast<double>(losses.size());
  double mean_step = 0, mean_loss = 0;
  for (const auto& [step, loss] : losses) {
    if (!loss) return std::nullopt;
    mean_step += static_cast<double>(step) / count;
    mean_loss += *loss / count;
  }
  double covariance = 0, variance = 0;
  for (const auto& [step, loss] : losses) {
    const double distance = static_cast<double>(step) - mean_step;
    covariance += distance * (*loss - mean_loss);
    variance += distance * distance;
  }
  return covariance / variance;
}

std::vector<RankUtilization> utilization_of(const JobRecord& job, int attempt) {
  std::vector<RankUtilization> rows;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    RankUtilization row;
    row.rank = rank;
    const Json* run = job.last(rank, "run", attempt);
    const Json* end = job.last(rank, "end", attempt);
    const auto wall = number_in(end, "compute_seconds");
    const auto cpu = number_in(end, "compute_cpu_seconds");
    const auto threads = number_in(run, "num_threads");
    if (wall && cpu && threads && *wall > 0 && *threads > 0) row.compute_share = *cpu / (*wall * *threads);
    row.gemm_gflops = number_in(end, "gemm_gflops");
    const auto flops_per_token = number_in(run, "model_flops_per_token");
    std::optional<double> tokens = 0;
    for (const auto* step : job.events(rank, "step", attempt)) add(tokens, number_in(step, "tokens"));
    if (cpu && flops_per_token && tokens && *cpu > 0 && *tokens > 0) {
      row.model_gflops = *flops_per_token * *tokens / job.world_size() / *cpu / 1e9;
    }
    if (row.model_gflops && row.gemm_gflops && *row.gemm_gflops > 0)
      row.ceiling_fraction = *row.model_gflops / *row.gemm_gflops;
    rows.push_back(row);
  }
  return rows;
}

CheckpointFigures checkpoint_figures_of(const JobRecord& job) {
  CheckpointFigures figures;
  std::map<std::pair<int, std::int64_t>, double> save_seconds, bytes;
  std::map<int, double> restore_seconds;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    for (const auto* event : job.events(rank, "checkpoint")) {
      const auto attempt = event->value("attempt", 0);
      const auto seconds = number_in(event, "seconds");
      if (!seconds) continue;
      if (event->value("restored", false)) {
        restore_seconds[attempt] = std::max(restore_seconds[attempt], *seconds);
        continue;
      }
      const std::pair key{attempt, event->value("saved_step", std::int64_t{0})};
      save_seconds[key] = std::max(save_seconds[key], *seconds);
      bytes[key] += number_in(event, "bytes").value_or(0);
    }
  }
  std::vector<double> times;
  for (const auto& [key, seconds] : save_seconds) times.push_back(seconds);
  figures.save_seconds = median_of(times);
  if (!bytes.empty() && bytes.rbegin()->second > 0) figures.bytes = bytes.rbegin()->second;
  if (!restore_seconds.empty()) figures.restore_seconds = restore_seconds.rbegin()->second;
  return figures;
}

ResumeComparison compare_resume(const JobRecord& resumed, const JobRecord& twin) {
  ResumeComparison result;
  if (!resumed.done() || !twin.done() || resumed.world_size() != twin.world_size()) {
    result.missing = "the resumed job or its twin did not end";
    return result;
  }
  result.attempt = resumed.last_attempt();
  std::set<int> differ;
  for (int rank = 0; rank < resumed.world_size(); ++rank) {
    const auto name = "rank " + std::to_string(rank);
    if (text_in(resumed.last(rank, "run", result.attempt), "resumed_from").empty()) {
      result.missing = name + " did not resume from a checkpoint";
      return result;
    }
    if (!text_in(twin.last(rank, "run"), "resumed_from").empty()) {
      result.missing = "the twin of " + name + " was interrupted and resumed itself";
      return result;
    }
    const auto steps = resumed.events(rank, "step", result.attempt);
    if (steps.empty()) {
      result.missing = name + " made no step after the resume";
      return result;
    }
    const auto twin_losses = by_step(twin, rank, "step", "loss", 0);
    result.first_step = steps.front()->value("step", std::int64_t{0});
    for (const auto* step : steps) {
      const auto theirs = twin_losses.find(step->value("step", std::int64_t{0}));
      const auto ours = number_in(step, "loss");
      if (!ours || theirs == twin_losses.end()) {
        result.missing = name + " or its twin has no loss of step " + dump_json((*step)["step"]);
        return result;
      }
      ++result.num_compared;
      if (*ours == theirs->second) continue;
      ++result.num_different;
      differ.insert(rank);
    }
    const auto our_state = text_in(resumed.last(rank, "end", result.attempt), "state_hash");
    const auto their_state = text_in(twin.last(rank, "end"), "state_hash");
    if (our_state.empty() || their_state.empty()) {
      result.missing = name + " or its twin has no state_hash at the end";
      return result;
    }
    if (our_state != their_state) differ.insert(rank);
  }
  result.ranks_that_differ.assign(differ.begin(), differ.end());
  return result;
}

const JobRecord& undisturbed_job(const RunRecord& run) {
  const auto& twin = run.job("twin-1");
  return twin.done() ? twin : run.job("train-1");
}

}  // namespace assay
