#include <gtest/gtest.h>

#include "tests/support/sharded_run.h"

namespace assay {
namespace {

constexpr int kSteps = 10;

struct Grid {
  int world_size;
  Precision precision;
  ActivationCheckpointing checkpointing;
  bool tied;

  friend void PrintTo(const Grid& g, std::ostream* out) {
    PrintTo(ShardedCase{StrategyName::ddp, g.world_size, g.precision, g.checkpointing, 1, 2, true, g.tied}, out);
  }
};

class Strategies : public ::testing::TestWithParam<Grid> {
 protected:
  static ShardedCase with(StrategyName strategy, std::int64_t accumulation) {
    const Grid& g = GetParam();
    return {strategy, g.world_size, g.precision, g.checkpointing, accumulation, 2, true, g.tied};
  }
};

TEST_P(Strategies, AreEqualToDdpInEveryBitWithOneMicroStep) {
  const Trained ddp = train_sharded(with(StrategyName::ddp, 1), kSteps);
  EXPECT_NE(ddp.losses.front(), ddp.losses.back());
  for (const auto strategy : {StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
    SCOPED_TRACE(name_of(strategy));
    expect_same_training(train_sharded(with(strategy, 1), kSteps), ddp);
  }
}

// Whole gradients are summed over the ranks once, sharded ones after every micro-step: two pairs.
class AccumulatingStrategies : public Strategies {};

TEST_P(AccumulatingStrategies, AreEqualInPairsWithThreeMicroSteps) {
  constexpr int kFewSteps = 4;
  const Trained ddp = train_sharded(with(StrategyName::ddp, 3), kFewSteps);
  expect_same_training(train_sharded(with(StrategyName::zero1, 3), kFewSteps), ddp);
  const Trained zero2 = train_sharded(with(StrategyName::zero2, 3), kFewSteps);
  expect_same_training(train_sharded(with(StrategyName::fsdp, 3), kFewSteps), zero2);
  // fp32 sums in another order; a wrong weight of one micro-step would show in the first decimal.
  const double bound = GetParam().precision == Precision::fp32 ? 5e-5 : 2e-2;
  for (int step = 0; step < kFewSteps; ++step) {
    EXPECT_NEAR(ddp.losses[static_cast<std::size_t>(step)], zero2.losses[static_cast<std::size_t>(step)], bound);
  }
}

std::vector<Grid> grid() {
  std::vector<Grid> cases;
  for (const int world_size : {2, 3, 4}) {
    for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
      for (const auto checkpointing : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
        cases.push_back({world_size, precision, checkpointing, world_size == 3});
      }
    }
  }
  cases.push_back({2, Precision::fp32, ActivationCheckpointing::selective, true});
  cases.push_back({3, Precision::bf16, ActivationCheckpointing::selective, false});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Grid, Strategies, ::testing::ValuesIn(grid()));

// Every world and precision once; checkpointing takes turns.
std::vector<Grid> accumulating_grid() {
  std::vector<Grid> cases;
  for (const int world_size : {2, 3, 4}) {
    for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
      cases.push_back({world_size, precision,
                       world_size == 2 ? ActivationCheckpointing::selective : ActivationCheckpointing::none,
                       world_size != 3});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Grid, AccumulatingStrategies, ::testing::ValuesIn(accumulating_grid()));

// What is only a matter of time and memory must not change a bit.
TEST(Strategies, UnitsInFlightAndReshardingChangeNoBit) {
  for (const auto strategy : {StrategyName::ddp, StrategyName::zero2, StrategyName::fsdp}) {
    ShardedCase c{strategy, 3, Precision::bf16, ActivationCheckpointing::none, 2};
    const Trained reference = train_sharded(c, 3);
    for (const std::int64_t units : {1, 3, 8}) {
      c.units_in_flight = units;
      c.reshard_after_forward = units != 3;
      expect_same_training(train_sharded(c, 3), reference);
    }
  }
}

TEST(Strategies, OneRankShardsNothingAndTrainsAsNone) {
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::pure_bf16}) {
    const Trained none = train_sharded({StrategyName::none, 1, precision}, 3);
    for (const auto strategy : {StrategyName::ddp, StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
      expect_same_training(train_sharded({strategy, 1, precision}, 3), none);
    }
  }
}

TEST(Strategies, CheckpointingChangesNoBit) {
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
    ShardedCase c{StrategyName::fsdp, 2, precision, ActivationCheckpointing::none, 2};
    const Trained none = train_sharded(c, 4);
    for (const auto checkpointing : {ActivationCheckpointing::selective, ActivationCheckpointing::full}) {
      c.checkpointing = checkpointing;
      expect_same_training(train_sharded(c, 4), none);
    }
  }
}

// bf16 on the wire rounds every rank's gradient, so losses move in the third digit, but alike for all strategies.
TEST(Strategies, AReductionInBf16IsTheSameForAll) {
  ShardedCase c{StrategyName::ddp, 3, Precision::fp32};
  const Trained wide = train_sharded(c, kSteps);
  c.reduce_dtype = FloatType::bf16;
  const Trained ddp = train_sharded(c, kSteps);
  EXPECT_NE(wide.losses, ddp.losses);
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(wide.losses[static_cast<std::size_t>(step)], ddp.losses[static_cast<std::size_t>(step)], 2e-2);
  }
  for (const auto strategy : {StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
    c.strategy = strategy;
    expect_same_training(train_sharded(c, kSteps), ddp);
  }
}

}  // namespace
}  // namespace assay
