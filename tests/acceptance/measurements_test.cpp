#include "harness/acceptance/measurements.h"

#include <gtest/gtest.h>

#include "tests/acceptance/synthetic_run.h"

namespace assay {
namespace {

/// A job whose rank events are given by a function of rank and step.
template <typename Fields>
JobRecord job_of_steps(int world_size, std::int64_t num_steps, Fields fields) {
  auto job = empty_job("train-1", world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    for (std::int64_t step = 1; step <= num_steps; ++step) {
      job.ranks[static_cast<std::size_t>(rank)].push_back(event("step", rank, step, 1, fields(rank, step)));
    }
  }
  return job;
}

TEST(Throughput, TokensOfAllMicroBatchesAndRanksAreCounted) {  // fault case J04
  const auto job = job_of_steps(2, 10, [](int, std::int64_t) {
    return Json{{"step_seconds", 1.0}, {"tokens", 4 * 100 * 2}};
  });
  EXPECT_DOUBLE_EQ(*throughput_of(job, 1).tokens_per_second, 800);
}

TEST(Throughput, WarmUpIsLeftOutOfTimeAndTokensAlike) {  // fault case J07
  auto job = job_of_steps(1, 10, [](int, std::int64_t step) {
    return Json{{"step_seconds", step <= 3 ? 10.0 : 1.0}, {"tokens", 50}, {"save_seconds", step == 6 ? 4.0 : 0.0}};
  });
  job.ranks[0].push_back(event("eval", 0, 8, 1, {{"loss", 1.0}, {"seconds", 3.0}}));
  const auto figures = throughput_of(job, 1);
  EXPECT_DOUBLE_EQ(*figures.step_seconds, 1.0);
  EXPECT_DOUBLE_EQ(*figures.tokens_per_second, 50);
  EXPECT_EQ(figures.excluded_steps, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_DOUBLE_EQ(*figures.net_tokens_per_second, 7 * 50 / (7 + 4 + 3.0));  // saves and evaluation count here
}

TEST(Throughput, FewerStepsThanWarmUpIsNotAvailable) {  // fault case J07
  const auto job = job_of_steps(1, 3, [](int, std::int64_t) { return Json{{"step_seconds", 1.0}, {"tokens", 50}}; });
  const auto figures = throughput_of(job, 1);
  EXPECT_FALSE(figures.tokens_per_second);
  EXPECT_FALSE(figures.reason.empty());
}

TEST(Throughput, SlotsRealAndTrainedTokensAreThreeFigures) {  // fault case J05: batch 2 x 16
  const auto job = job_of_steps(1, 4, [](int, std::int64_t) {
    return Json{{"step_seconds", 2.0}, {"tokens", 32}, {"real_tokens", 10}, {"loss_tokens", 6}};
  });
  const auto figures = throughput_of(job, 1);
  EXPECT_DOUBLE_EQ(*figures.tokens_per_second, 16);
  EXPECT_DOUBLE_EQ(*figures.real_tokens_per_second, 5);
  EXPECT_DOUBLE_EQ(*figures.trained_tokens_per_second, 3);
}

TEST(Throughput, AStepIsAsSlowAsItsSlowestRank) {
  const auto job = job_of_steps(2, 6, [](int rank, std::int64_t) {
    return Json{{"step_seconds", rank + 1.0}, {"tokens", 10}};
  });
  EXPECT_DOUBLE_EQ(*throughput_of(job, 1).step_seconds, 2.0);
}

TEST(Throughput, AStepWithoutATimeOnOneRankGivesNoFigure) {
  auto job = job_of_steps(2, 6, [](int, std::int64_t) { return Json{{"step_seconds", 1.0}, {"tokens", 10}}; });
  job.ranks[1][4].erase("step_seconds");
  EXPECT_FALSE(throughput_of(job, 1).step_seconds);
  EXPECT_NE(throughput_of(job, 1).reason.find("step 5"), std::string::npos);
}

TEST(Loss, SlopeIsThatOfLeastSquares) {
  // Points (1, 1), (2, 2), (3, 4): slope 3/2, by hand.
  EXPECT_DOUBLE_EQ(*slope_of({{1, 1.0}, {2, 2.0}, {3, 4.0}}), 1.5);
  EXPECT_FALSE(slope_of({{1, 1.0}}));
  EXPECT_FALSE(slope_of({{1, 1.0}, {2, std::nullopt}, {3, 1.0}}));
}

TEST(Loss, ALaterAttemptHasTheLastWord) {
  auto job = job_of_steps(1, 4, [](int, std::int64_t) { return Json{{"loss", 9.0}}; });
  job.ranks[0].push_back(event("step", 0, 4, 2, {{"loss", 7.5}}));
  EXPECT_EQ(losses_of(job).at(4), 7.5);
  EXPECT_EQ(losses_of(job).at(3), 9.0);
}

TEST(Utilization, SharesAreThoseOfTheRanksOwnThreads) {
  auto job = job_of_steps(2, 10, [](int, std::int64_t) { return Json{{"tokens", 1000}}; });
  for (int rank = 0; rank < 2; ++rank) {
    auto& events = job.ranks[static_cast<std::size_t>(rank)];
    events.push_back(event("run", rank, 0, 1, {{"num_threads", 2}, {"model_flops_per_token", 6e6}}));
    events.push_back(
        event("end", rank, 10, 1,
              {{"compute_seconds", 8.0}, {"compute_cpu_seconds", rank == 0 ? 15.0 : 4.0}, {"gemm_gflops", 4.0}}));
  }
  const auto rows = utilization_of(job, 1);
  EXPECT_DOUBLE_EQ(*rows[0].compute_share, 15.0 / 16);
  EXPECT_DOUBLE_EQ(*rows[1].compute_share, 4.0 / 16);
  // 10 steps x 1000 tokens / 2 ranks x 6e6 FLOPs = 3e10 FLOPs in 15 CPU seconds = 2e9 a second, of 4e9.
  EXPECT_DOUBLE_EQ(*rows[0].ceiling_fraction, 0.5);
}

TEST(Median, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 3, 2}), 2.5);
  EXPECT_FALSE(median_of({}));
}

TEST(Checkpoints, AreAsSlowAsTheSlowestRankAndAsLargeAsAllOfThem) {
  auto job = empty_job("train-1", 2);
  for (int rank = 0; rank < 2; ++rank) {
    auto& events = job.ranks[static_cast<std::size_t>(rank)];
    for (const std::int64_t step : {4, 8, 12}) {
      events.push_back(event("checkpoint", rank, step, 1,
                             {{"saved_step", step}, {"seconds", rank == 1 ? step / 4.0 : 0.5}, {"bytes", 100 + rank}}));
    }
    events.push_back(event("checkpoint", rank, 12, 2, {{"restored", true}, {"seconds", 0.1 + rank}}));
  }
  const auto figures = checkpoint_figures_of(job);
  EXPECT_EQ(figures.save_seconds, 2.0);
  EXPECT_EQ(figures.bytes, 201);
  EXPECT_EQ(figures.restore_seconds, 1.1);
}

TEST(Resume, ComparesLossesAfterTheResumeAndTheFinalState) {
  const auto run = passing_run();
  const auto comparison = compare_resume(run.job("train-1"), run.job("twin-1"));
  EXPECT_TRUE(comparison.equal());
  EXPECT_EQ(comparison.attempt, 2);
  EXPECT_EQ(comparison.first_step, 5);
  EXPECT_EQ(comparison.num_compared, 2 * 6);
}

}  // namespace
}  // namespace assay
