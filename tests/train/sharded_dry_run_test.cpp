#include <gtest/gtest.h>

#include "harness/core/clock.h"
#include "tests/support/dry_run_check.h"
#include "tests/support/sharded_run.h"

namespace assay {
namespace {

class ShardedDryRun : public ::testing::TestWithParam<ShardedCase> {};

TEST_P(ShardedDryRun, EqualsTheRunInEveryAllocationEvent) {
  expect_dry_run_equals_run(sharded_recipe(GetParam()), sharded_config(GetParam()), GetParam().world_size);
}

// Every strategy with every precision, checkpointing and accumulation; world sizes, units in flight, resharding, tied
// embeddings and the dtype of the reduction take turns.
std::vector<ShardedCase> cases() {
  std::vector<ShardedCase> result;
  int turn = 0;
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
    for (const auto checkpointing :
         {ActivationCheckpointing::none, ActivationCheckpointing::selective, ActivationCheckpointing::full}) {
      for (const std::int64_t accumulation : {1, 3}) {
        for (const auto strategy :
             {StrategyName::none, StrategyName::ddp, StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
          const int world_size = strategy == StrategyName::none ? 1 : 2 + turn % 3;
          result.push_back({strategy, world_size, precision, checkpointing, accumulation, 1 + turn % 4, turn % 5 != 0,
                            turn % 7 == 0, turn % 4 == 3 ? FloatType::bf16 : FloatType::fp32});
          ++turn;
        }
      }
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Recipes, ShardedDryRun, ::testing::ValuesIn(cases()));

}  // namespace
}  // namespace assay
