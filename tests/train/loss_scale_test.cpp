#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "harness/recipe/enum_names.h"
#include "tests/support/batch_job.h"
#include "tests/support/whole_state.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

constexpr double kMuchTooLarge = 0x1p40;  // a trained token's gradient overflows fp16 by far

Recipe fp16_recipe(const Cut& cut, const std::vector<std::int64_t>& trained, const TemporaryFolder& folder,
                   StrategyName strategy, double initial_scale) {
  Recipe recipe = batches_recipe(cut, rows_with(trained), folder.path / "batches.safetensors");
  recipe.parallel.strategy = strategy;
  recipe.train.precision = Precision::fp16;
  recipe.train.loss_scale.initial = initial_scale;
  return recipe;
}

std::vector<std::int64_t> repeated(std::int64_t times, const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < times; ++i) result.insert(result.end(), counts.begin(), counts.end());
  return result;
}

// C06: the rows of rank 0 have no trained token, so its own gradients are zero under any scale, and finite.
TEST(LossScale, AnOverflowOnOneRankSkipsOnAll) {
  constexpr std::int64_t kSteps = 32;
  std::map<std::string, at::Tensor> expected;
  for (const auto strategy : {StrategyName::ddp, StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
    SCOPED_TRACE(name_of(strategy));
    const TemporaryFolder folder;
    const Cut cut{2, 1, 1, kSteps};
    const auto recipe = fp16_recipe(cut, repeated(kSteps, {0, 15}), folder, strategy, kMuchTooLarge);
    std::array<std::vector<StepRecord>, 2> records;
    std::array<Progress, 2> progress;
    std::array<std::string, 2> hashes;
    WholeState state(2);
    run_trainers(recipe, small_job_config(), 2, find_free_port(), [&](TestRank rank) {
      const auto r = static_cast<std::size_t>(rank.rank);
      const std::string before = rank.trainer.parameters_hash();
      for (std::int64_t step = 0; step < kSteps; ++step) {
        records[r].push_back(rank.trainer.step());
        EXPECT_TRUE(step > 0 || rank.trainer.parameters_hash() == before);
      }
      progress[r] = rank.trainer.progress();
      hashes[r] = rank.trainer.parameters_hash();
      state.add(rank.rank, rank.trainer);
    });
    std::int64_t num_skipped = 0;
    for (std::size_t step = 0; step < kSteps; ++step) {
      const StepRecord& record = records[0][step];
      EXPECT_EQ(record.skipped, records[1][step].skipped) << step;
      EXPECT_EQ(record.loss_scale, kMuchTooLarge * std::exp2(-static_cast<double>(num_skipped))) << step;
      EXPECT_EQ(record.loss_scale, records[1][step].loss_scale) << step;
      EXPECT_EQ(record.skipped, record.overflowed) << step;
      if (record.skipped) ++num_skipped;
    }
    EXPECT_GT(num_skipped, 10);
    EXPECT_LT(num_skipped, kSteps);
    EXPECT_EQ(progress[0].skipped_steps, num_skipped);
    EXPECT_EQ(progress[0], progress[1]);
    if (strategy == StrategyName::ddp) {
      EXPECT_EQ(hashes[0], hashes[1]);
      expected = state.tensors();
    }
    for (const auto& [name, tensor] : state.tensors()) EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
  }
}

// C01, C03: the scale falls and grows within the next five steps, which is only so if scale and counter came back.
TEST(LossScale, ComesBackWithTheStateAndGoesOnAsIfNeverStopped) {
  constexpr std::int64_t kBefore = 26;
  constexpr std::int64_t kAfter = 5;
  for (const auto strategy : {StrategyName::ddp, StrategyName::zero2, StrategyName::fsdp}) {
    SCOPED_TRACE(name_of(strategy));
    const TemporaryFolder folder;
    const Cut cut{2, 1, 1, kBefore + kAfter + 5};
    auto recipe = fp16_recipe(cut, repeated(cut.steps, {7, 15}), folder, strategy, 0x1p34);
    recipe.train.loss_scale.growth_interval = 2;
    struct Saved {
      std::map<std::string, at::Tensor> tensors;
      Progress progress;
      std::vector<std::string> hashes;
      std::vector<StepRecord> records;
    };
    std::array<Saved, 2> saved;
    const auto go_on = [](TestRank rank, const std::function<void(const StepRecord&, const std::string&)>& note) {
      for (std::int64_t step = 0; step < kAfter; ++step) {
        const auto record = rank.trainer.step();
        note(record, rank.trainer.state_hash());
      }
    };
    run_trainers(recipe, small_job_config(), 2, find_free_port(), [&](TestRank rank) {
      Saved& mine = saved[static_cast<std::size_t>(rank.rank)];
      for (std::int64_t step = 0; step < kBefore; ++step) rank.trainer.step();
      // Saved in the middle of an interval, or a counter that starts again would not show.
      while (rank.trainer.progress().loss_scaler.good_steps == 0) rank.trainer.step();
      for (const auto& [name, tensor] : rank.trainer.state_tensors()) mine.tensors[name] = tensor.clone();
      mine.progress = rank.trainer.progress();
      go_on(rank, [&](const StepRecord& record, const std::string& hash) {
        mine.records.push_back(record);
        mine.hashes.push_back(hash);
      });
    });
    EXPECT_LT(saved[0].progress.loss_scaler.scale, 0x1p34);
    EXPECT_GT(saved[0].progress.loss_scaler.good_steps, 0);
    run_trainers(recipe, small_job_config(), 2, find_free_port(), [&](TestRank rank) {
      const Saved& theirs = saved[static_cast<std::size_t>(rank.rank)];
      for (auto& [name, tensor] : rank.trainer.state_tensors()) tensor.copy_(theirs.tensors.at(name));
      rank.trainer.finish_restore(theirs.progress);
      EXPECT_EQ(rank.trainer.progress(), theirs.progress);
      std::size_t step = 0;
      go_on(rank, [&](const StepRecord& record, const std::string& hash) {
        EXPECT_EQ(record.loss_scale, theirs.records[step].loss_scale);
        EXPECT_EQ(record.skipped, theirs.records[step].skipped);
        EXPECT_EQ(record.loss, theirs.records[step].loss);
        EXPECT_EQ(hash, theirs.hashes[step]) << "step " << step;
        ++step;
      });
    });
    std::vector<double> scales;
    for (const auto& record : saved[0].records) scales.push_back(record.loss_scale);
    EXPECT_GT(*std::max_element(scales.begin(), scales.end()), *std::min_element(scales.begin(), scales.end()));
  }
}

/// Norms and first moments under a rate of 0, so that the same rows give the same gradient step after step.
struct Repeated {
  std::vector<StepRecord> records;
  std::vector<double> moment_norms;
};

Repeated repeat_one_gradient(Precision precision, double scale, double max_grad_norm) {
  const TemporaryFolder folder;
  const Cut cut{1, 2, 1, 1};
  auto recipe = fp16_recipe(cut, {9, 15}, folder, StrategyName::none, scale);
  recipe.train.precision = precision;
  recipe.train.loss_scale.growth_interval = 1;
  recipe.train.max_grad_norm = max_grad_norm;
  recipe.optimizer.learning_rate = 0;
  Repeated result;
  run_trainers(recipe, small_job_config(), 1, 0, [&](TestRank rank) {
    for (int step = 0; step < 6; ++step) {
      Progress progress = rank.trainer.progress();
      progress.samples = 0;
      rank.trainer.state_tensors();
      rank.trainer.finish_restore(progress);
      result.records.push_back(rank.trainer.step());
      double squares = 0;
      for (const auto& [name, tensor] : rank.trainer.state_tensors()) {
        if (name.rfind("exp_avg.", 0) == 0) squares += std::pow(tensor.to(at::kDouble).norm().item<double>(), 2);
      }
      result.moment_norms.push_back(std::sqrt(squares));
    }
  });
  return result;
}

// C04: the scale doubles after every step. Divided by the scale of its own backward pass the gradient is the same each
// time, so after t steps the first moment is (1 - 0.9^t) of it; divided by the next scale, half as much.
TEST(LossScale, AGradientIsDividedByTheScaleItWasMadeWith) {
  const Repeated fp32 = repeat_one_gradient(Precision::fp32, 4, 0);
  const Repeated fp16 = repeat_one_gradient(Precision::fp16, 4, 0);
  const double norm = fp32.records[0].grad_norm;
  for (std::size_t step = 0; step < 6; ++step) {
    EXPECT_EQ(fp16.records[step].loss_scale, 4 * std::exp2(static_cast<double>(step)));
    EXPECT_EQ(fp16.records[step].loss, fp16.records[0].loss) << "the weights moved";
    EXPECT_NEAR(fp16.records[step].grad_norm, norm, 1e-2 * norm) << step;
    EXPECT_NEAR(fp16.moment_norms[step], (1 - std::pow(0.9, static_cast<double>(step + 1))) * norm, 1e-2 * norm);
  }
}

// B09: a norm of about 1 with a scale of 1024: clipping must see 1.
TEST(LossScale, ClippingSeesTheTrueNorm) {
  const double norm = repeat_one_gradient(Precision::fp32, 1024, 0).records[0].grad_norm;
  const Repeated below = repeat_one_gradient(Precision::fp16, 1024, 2 * norm);
  EXPECT_FALSE(below.records[0].skipped);
  EXPECT_NEAR(below.records[0].grad_norm, norm, 1e-2 * norm);
  EXPECT_NEAR(below.moment_norms[0], 0.1 * norm, 1e-3 * norm) << "clipped, though the norm is below the limit";
  EXPECT_NEAR(repeat_one_gradient(Precision::fp16, 1024, norm / 2).moment_norms[0], 0.05 * norm, 1e-3 * norm);
}

// C07
TEST(LossScale, RanksWithUnequalScalesNeverStep) {
  const TemporaryFolder folder;
  const auto recipe = fp16_recipe({2, 1, 1, 1}, {9, 15}, folder, StrategyName::zero2, 1024);
  std::array<std::string, 2> messages;
  run_trainers(recipe, small_job_config(), 2, find_free_port(), [&](TestRank rank) {
    Progress progress = rank.trainer.progress();
    if (rank.rank == 1) progress.loss_scaler.scale = 512;
    rank.trainer.state_tensors();
    rank.trainer.finish_restore(progress);
    const std::string before = rank.trainer.state_hash();
    try {
      rank.trainer.step();
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(rank.rank)] = error.what();
    }
    EXPECT_EQ(rank.trainer.state_hash(), before);
  });
  for (const auto& message : messages) EXPECT_THAT(message, HasSubstr("rank 1 has the loss scale 512"));
}

// C09: the floor is a scale that is still too large.
TEST(LossScale, AModelThatAlwaysOverflowsIsNotTrainableInFp16) {
  for (const auto strategy : {StrategyName::ddp, StrategyName::fsdp}) {
    const TemporaryFolder folder;
    auto recipe = fp16_recipe({2, 1, 1, 6}, repeated(6, {9, 15}), folder, strategy, kMuchTooLarge);
    recipe.train.loss_scale.minimum = kMuchTooLarge / 8;
    std::array<std::string, 2> messages;
    run_trainers(recipe, small_job_config(), 2, find_free_port(), [&](TestRank rank) {
      for (int step = 0; step < 3; ++step) EXPECT_TRUE(rank.trainer.step().skipped);
      const std::string before = rank.trainer.state_hash();
      try {
        rank.trainer.step();
      } catch (const Error& error) {
        messages[static_cast<std::size_t>(rank.rank)] = error.what();
      }
      EXPECT_EQ(rank.trainer.state_hash(), before);
      EXPECT_EQ(rank.trainer.progress().loss_scaler.scale, kMuchTooLarge / 8);
      EXPECT_EQ(rank.trainer.progress().skipped_steps, 3);
    });
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_THAT(messages[0], HasSubstr("step 4 is not finite"));
    EXPECT_THAT(messages[0], HasSubstr("first on rank 0: the gradient of model.norm.weight"));
    EXPECT_THAT(messages[0], HasSubstr("not trainable in fp16"));
  }
}

TEST(LossScale, NeverFallsBelowTheMinimumAndGrowsOnlyAfterGoodStepsInARow) {
  LossScaler scaler(Precision::fp16, {12, 3, 5});
  const auto after = [&](bool overflowed) {
    scaler.update(overflowed);
    return scaler.scale();
  };
  EXPECT_EQ(after(false), 12);
  EXPECT_EQ(after(false), 12);
  EXPECT_EQ(after(true), 6);
  EXPECT_FALSE(scaler.at_minimum());
  EXPECT_EQ(after(true), 5);
  EXPECT_TRUE(scaler.at_minimum());
  EXPECT_EQ(after(true), 5);
  EXPECT_EQ(after(false), 5);
  EXPECT_EQ(after(false), 5);
  EXPECT_EQ(after(false), 10);
  EXPECT_EQ(after(false), 10);
  LossScaler none(Precision::bf16, {12, 3, 5});
  none.update(true);
  EXPECT_EQ(none.scale(), 1);
}

// C15: a step without a trained token leaves nothing half open: the next one is that of a run that never had it.
TEST(LossScale, ASkippedStepLeavesNothingBehind) {
  const auto train = [](const std::vector<std::int64_t>& trained, double scale, std::int64_t steps) {
    const TemporaryFolder folder;
    const auto recipe = fp16_recipe({1, 1, 1, steps}, trained, folder, StrategyName::none, scale);
    Outcome outcome;
    run_trainers(recipe, small_job_config(), 1, 0, [&](TestRank rank) { take_steps(rank.trainer, steps, outcome); });
    return outcome;
  };
  // Rows are numbered, so that row_with makes the same ones: 0 and 2 with tokens, 1 without.
  const Outcome with = train({9, 0, 15}, 1024, 3);
  EXPECT_TRUE(with.records[1].skipped);
  EXPECT_FALSE(with.records[1].overflowed);
  EXPECT_FALSE(with.records[2].skipped);
  EXPECT_EQ(with.progress.loss_scaler.scale, 1024);
  const TemporaryFolder folder;
  auto rows = rows_with({9, 0, 15});
  rows.erase(rows.begin() + 1);
  Recipe recipe = batches_recipe({1, 1, 1, 2}, rows, folder.path / "batches.safetensors");
  recipe.train.precision = Precision::fp16;
  recipe.train.loss_scale.initial = 1024;
  Outcome without;
  run_trainers(recipe, small_job_config(), 1, 0, [&](TestRank rank) { take_steps(rank.trainer, 2, without); });
  EXPECT_TRUE(bits_equal(with.parameters, without.parameters));
}

}  // namespace
}  // namespace assay
