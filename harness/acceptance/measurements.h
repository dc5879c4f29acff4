#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/acceptance/run_record.h"

namespace assay {

/// Steps at the start of an attempt that are left out of times: caches and allocators are cold.
inline constexpr int kWarmupSteps = 3;

/// Speed of one attempt. A step is as slow as its slowest rank. Tokens and time are those of the same steps.
struct Throughput {
  std::optional<double> step_seconds;               ///< median without warm-up, evaluation and saves
  std::optional<double> recompute_seconds;          ///< the same of recomputation for activation checkpointing
  std::optional<double> tokens_per_second;          ///< slots (rows x length, padding included): the headline figure
  std::optional<double> real_tokens_per_second;     ///< without padding
  std::optional<double> trained_tokens_per_second;  ///< those with a label
  std::optional<double> net_tokens_per_second;      ///< slots over the whole time: steps, saves and evaluation
  std::vector<std::int64_t> excluded_steps;
  std::string reason;  ///< why there is no figure
};
Throughput throughput_of(const JobRecord& job, int attempt);

/// Loss of each step as rank 0 recorded it, over all attempts, a later attempt's word before an earlier one's. A loss
/// that is not finite is nothing.
std::map<std::int64_t, std::optional<double>> losses_of(const JobRecord& job);

/// Slope by least squares over the steps; nothing for fewer than two, or if one of them is not finite.
std::optional<double> slope_of(const std::map<std::int64_t, std::optional<double>>& losses);

/// How busy a rank's own threads were in an attempt, its waits for others not counted.
struct RankUtilization {
  int rank = 0;
  std::optional<double> compute_share;     ///< CPU seconds / (wall seconds x threads) of its own computing
  std::optional<double> gemm_gflops;       ///< of a matrix product, for each CPU second
  std::optional<double> model_gflops;      ///< model FLOPs of its share of the steps, for each CPU second
  std::optional<double> ceiling_fraction;  ///< model_gflops / gemm_gflops
};
std::vector<RankUtilization> utilization_of(const JobRecord& job, int attempt);

/// Median; the mean of the middle two of an even number. Nothing for none.
std::optional<double> median_of(std::vector<double> values);

/// What is known of saving and restoring.
struct CheckpointFigures {
  std::optional<double> save_seconds;     ///< median over saves, each as slow as its slowest rank
  std::optional<double> bytes;            ///< of the last checkpoint, all ranks
  std::optional<double> restore_seconds;  ///< of the last restore, slowest rank
};
CheckpointFigures checkpoint_figures_of(const JobRecord& job);

/// An interrupted and resumed job beside its uninterrupted twin.
struct ResumeComparison {
  int attempt = 0;                     ///< the one that resumed; 0: none did
  std::int64_t first_step = 0;         ///< after the resume
  std::int64_t num_compared = 0;       ///< losses, over all ranks
  std::int64_t num_different = 0;      ///< of these, not equal bit for bit
  std::vector<int> ranks_that_differ;  ///< by a loss or by the final state
  std::string missing;                 ///< what could not be compared; empty: nothing
  bool equal() const { return missing.empty() && num_compared > 0 && ranks_that_differ.empty(); }
};
ResumeComparison compare_resume(const JobRecord& resumed, const JobRecord& twin);

/// The training job that was not interrupted on purpose: the twin if it ended, else train-1. Times and memory are its.
const JobRecord& undisturbed_job(const RunRecord& run);

}  // namespace assay
