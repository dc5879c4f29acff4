#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/batch_job.h"

namespace assay {
namespace {

// Sums of the same terms in another order: each gradient is a sum over at most 80 tokens and some 50 features, rounded
// to 6e-8, so 4e-6 with room. A mean of means is off by more than 1e-2 here.
constexpr double kRounding = 4e-6;

// B01
TEST(Accumulation, LossAndGradientsDoNotDependOnTheCut) {
  const auto rows = rows_with({3, 5, 9, 16});
  const Outcome whole = run({1, 4, 1}, rows);
  EXPECT_EQ(whole.records[0].loss_tokens, 33);
  for (const Cut cut : {Cut{1, 2, 2}, Cut{1, 1, 4}, Cut{2, 2, 1}, Cut{2, 1, 2}}) {
    SCOPED_TRACE(std::to_string(cut.world_size) + " ranks, " + std::to_string(cut.accumulation) + " micro-steps");
    const Outcome parts = run(cut, rows);
    EXPECT_NEAR(parts.records[0].loss, whole.records[0].loss, 1e-6);
    EXPECT_EQ(parts.records[0].loss_tokens, 33);
    EXPECT_NEAR(parts.records[0].grad_norm, whole.records[0].grad_norm, kRounding * whole.records[0].grad_norm);
    EXPECT_LE(worst_difference(parts.gradients, whole.gradients), kRounding);
  }

  double mean_of_means = 0;
  std::vector<at::Tensor> mean_gradients;
  for (const auto& row : rows) {
    const Outcome alone = run({}, {row});
    mean_of_means += alone.records[0].loss / 4;
    for (std::size_t i = 0; i < alone.gradients.size(); ++i) {
      if (mean_gradients.size() <= i) mean_gradients.push_back(at::zeros_like(alone.gradients[i]));
      mean_gradients[i].add_(alone.gradients[i], 0.25);
    }
  }
  EXPECT_GT(std::abs(mean_of_means - whole.records[0].loss), 1e-2);
  EXPECT_GT(worst_difference(mean_gradients, whole.gradients), 1e-2);
}

// B03: 32 trained tokens. With eps 1 the first AdamW update is rate x g / (|g| + 1), which grows with the gradient as
// plain descent does: a gradient that is wrong by a factor moves the weights by about that factor. Weights of size 1
// are rounded to 6e-8 while they move by 1e-3 or more.
TEST(Accumulation, TheWeightChangeDoesNotDependOnTheFactor) {
  const auto rows = rows_with(std::vector<std::int64_t>(8, 4));
  const auto like_descent = [](Recipe& recipe) {
    recipe.optimizer.eps = 1;
    recipe.optimizer.learning_rate = 1;
  };
  const Outcome whole = run({1, 8, 1}, rows, like_descent);
  EXPECT_EQ(whole.records[0].loss_tokens, 32);
  for (const std::int64_t factor : {2, 4, 8}) {
    const Outcome parts = run({1, 8 / factor, factor}, rows, like_descent);
    EXPECT_LE(worst_difference(changes(parts), changes(whole)), 1e-4) << factor;
    EXPECT_LE(worst_difference(parts.gradients, whole.gradients), kRounding) << factor;
  }
  const Outcome half_the_tokens = run({1, 8, 1}, rows_with({4, 4, 4, 4, 0, 0, 0, 0}), like_descent);
  EXPECT_GT(worst_difference(changes(half_the_tokens), changes(whole)), 1e-2) << "the test must be able to fail";
}

// B07: warm-up over 10 steps. The rate of step k is (k - 1) / 10 or k / 10 of the peak, whatever the accumulation and
// ranks.
TEST(Accumulation, TheScheduleMovesOnceAnOptimizerStep) {
  for (const auto convention : {WarmupConvention::transformers, WarmupConvention::torchtitan}) {
    for (const Cut cut : {Cut{1, 1, 1, 12}, Cut{1, 1, 4, 12}, Cut{2, 1, 4, 12}}) {
      const auto count = static_cast<std::size_t>(cut.world_size * cut.accumulation * cut.steps);
      const auto outcome = run(cut, rows_with(std::vector<std::int64_t>(count, 4)), [&](Recipe& recipe) {
        recipe.optimizer.learning_rate = 1e-3;
        recipe.schedule = {ScheduleName::constant, 10, 0, convention};
      });
      for (std::int64_t step = 1; step <= cut.steps; ++step) {
        const auto done = static_cast<double>(convention == WarmupConvention::transformers ? step - 1 : step);
        const StepRecord& record = outcome.records[static_cast<std::size_t>(step - 1)];
        EXPECT_EQ(record.step, step);
        EXPECT_NEAR(record.learning_rate, 1e-3 * std::min(1.0, done / 10), 1e-15);
      }
    }
  }
}

// B10: zeros add nothing, so bits are those of the job without that part.
TEST(Accumulation, AFullyMaskedMicroBatchIsAsIfItWereNotThere) {
  const auto rows = rows_with({3, 0, 9, 16});
  const Outcome masked = run({1, 1, 4}, rows);
  const Outcome without = run({1, 1, 3}, {rows[0], rows[2], rows[3]});
  EXPECT_EQ(masked.records[0].loss, without.records[0].loss);
  EXPECT_EQ(masked.records[0].grad_norm, without.records[0].grad_norm);
  EXPECT_FALSE(masked.records[0].skipped);
  EXPECT_TRUE(bits_equal(masked.gradients, without.gradients));
  EXPECT_TRUE(bits_equal(masked.parameters, without.parameters));
}

TEST(Accumulation, AFullyMaskedRankIsAsIfItWereNotThere) {
  const auto rows = rows_with({3, 0, 9, 0});  // rank 1 takes the second and the fourth
  const auto masked = run_all_ranks({2, 1, 2}, rows);
  const Outcome without = run({1, 1, 2}, {rows[0], rows[2]});
  for (const auto& rank : masked) {
    EXPECT_EQ(rank.records[0].loss, without.records[0].loss);
    EXPECT_FALSE(rank.records[0].skipped);
    EXPECT_TRUE(std::isfinite(rank.records[0].grad_norm));
    EXPECT_TRUE(bits_equal(rank.gradients, without.gradients));
    EXPECT_TRUE(bits_equal(rank.parameters, without.parameters));
  }
}

TEST(Accumulation, AStepWithoutATrainedTokenIsSkippedAndCounted) {
  const auto rows = rows_with({0, 0, 0, 0, 3, 5, 9, 16});
  const Cut two_steps{2, 1, 2, 2};
  const auto skipped = run_all_ranks(two_steps, rows);
  const Outcome without = run({2, 1, 2, 1}, {rows.begin() + 4, rows.end()});
  for (const auto& rank : skipped) {
    EXPECT_TRUE(rank.records[0].skipped);
    EXPECT_EQ(rank.records[0].loss, 0);
    EXPECT_EQ(rank.records[0].loss_tokens, 0);
    EXPECT_FALSE(rank.records[1].skipped);
    EXPECT_EQ(rank.progress, (Progress{2, 8, 1, {}}));
    EXPECT_EQ(rank.records[1].loss, without.records[0].loss) << "the skipped step has changed the weights";
    EXPECT_TRUE(bits_equal(rank.parameters, without.parameters)) << "the skipped step has counted for the optimizer";
  }
}

// J10: the mean over the trained tokens of all micro-steps and ranks, from each row's own loss.
TEST(Accumulation, TheReportedLossIsTheMeanOverAllMicroStepsAndRanks) {
  const std::vector<std::int64_t> trained{3, 19, 5, 2, 9, 11, 16, 1};
  const auto rows = rows_with(trained);
  double sum = 0;
  double tokens = 0;
  std::vector<double> losses;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    losses.push_back(run({}, {rows[i]}).records[0].loss);
    sum += losses[i] * static_cast<double>(trained[i]);
    tokens += static_cast<double>(trained[i]);
  }
  for (const auto& rank : run_all_ranks({2, 1, 4}, rows)) {
    EXPECT_NEAR(rank.records[0].loss, sum / tokens, 1e-6);
    EXPECT_EQ(rank.records[0].loss_tokens, static_cast<std::int64_t>(tokens));
  }
  double first_rank = 0;
  double plain = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    plain += losses[i] / 8;
    if (i % 2 == 0) first_rank += losses[i] * static_cast<double>(trained[i]) / 33;
  }
  for (const double wrong : {losses[6], losses[7], first_rank, plain}) EXPECT_GT(std::abs(wrong - sum / tokens), 1e-3);
}

// J04: 4 micro-steps of 100 tokens on 2 ranks in a step of 1 s are 800 tokens a second, 400 a rank.
TEST(Accumulation, TheTokensOfAStepAreThoseOfTheWholeGlobalBatch) {
  install_tracking_allocators();
  const int port = find_free_port();
  Recipe recipe = recipe_of({2, 5, 4, 2});
  static_assert(5 * kLength == 100);
  run_ranks(2, [&](int rank) {
    ManualClock clock;
    const auto communicator = make_test_communicator(rank, 2, port, clock);
    const auto device = make_cpu_device(1);
    const auto rows = make_synthetic_rows(kLength, 256, 1);
    MemoryLedger ledger;
    const auto on_phase = [&clock](Phase phase, std::int64_t /*step*/) {
      clock.wall += phase == Phase::update ? 1 : 0;
    };
    Trainer trainer(recipe, small_job_config(), {*device, *communicator, clock, ledger, *rows, on_phase});
    trainer.initialize_parameters();
    for (int step = 0; step < 2; ++step) {
      const StepRecord record = trainer.step();
      EXPECT_EQ(record.step_seconds, 1);
      EXPECT_EQ(static_cast<double>(record.tokens) / record.step_seconds, 800);
      EXPECT_EQ(record.loss_tokens, 40 * (kLength - 1));
    }
  });
}

// J05
TEST(Accumulation, SlotsAndTrainedTokensAreTwoNumbers) {
  const Outcome outcome = run({1, 2, 1}, rows_with({4, 2}));
  EXPECT_EQ(outcome.records[0].tokens, 2 * kLength);
  EXPECT_EQ(outcome.records[0].loss_tokens, 6);
}

// The first values depend on the seed, not on how many ranks there are.
TEST(Accumulation, InitialParametersAreTheSameInEveryWorld) {
  const Outcome alone = run({1, 1, 6}, rows_with({1, 2, 3, 4, 5, 6}));
  for (const int world_size : {2, 3}) {
    for (const auto& rank : run_all_ranks({world_size, 1, 6 / world_size}, rows_with({1, 2, 3, 4, 5, 6}))) {
      EXPECT_TRUE(bits_equal(rank.initial, alone.initial)) << world_size;
    }
  }
}

}  // namespace
}  // namespace assay
