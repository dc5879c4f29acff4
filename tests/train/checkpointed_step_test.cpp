#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

#include "tests/support/sharded_run.h"

namespace assay {
namespace {

constexpr ActivationCheckpointing kModes[] = {ActivationCheckpointing::none, ActivationCheckpointing::selective,
                                              ActivationCheckpointing::full};

// F06: tied embeddings, read twice, and blocks that are computed twice.
TEST(CheckpointedStep, EveryParameterIsReducedOnceAStep) {
  constexpr std::int64_t kUnits = 4;
  constexpr std::int64_t kSummary = 1;
  // Sums of whole gradients are scattered and gathered once; of sharded ones scattered after each of two micro-steps.
  // Where the optimizer is sharded the weights are gathered.
  const std::map<StrategyName, std::int64_t> operations{{StrategyName::ddp, 2 * kUnits + kSummary},
                                                        {StrategyName::zero1, 2 * kUnits + kSummary},
                                                        {StrategyName::zero2, 3 * kUnits + kSummary}};
  for (const auto& [strategy, expected] : operations) {
    for (const auto mode : kModes) {
      ShardedCase c{strategy, 2, Precision::fp32, mode, 2};
      c.tied = true;
      SCOPED_TRACE(::testing::PrintToString(c));
      run_trainers(sharded_recipe(c), sharded_config(c), 2, find_free_port(), [&, expected = expected](TestRank rank) {
        ASSERT_EQ(rank.trainer.model().units().size(), static_cast<std::size_t>(kUnits));
        for (int step = 0; step < 2; ++step) {
          const std::int64_t before = rank.communicator.totals().num_operations;
          rank.trainer.step();
          EXPECT_EQ(rank.communicator.totals().num_operations - before, expected);
        }
      });
    }
  }
}

// F03, F07: an evaluation between steps 2 and 3 changes neither what step 3 computes nor its memory, and recomputation
// leaves the random state alone.
TEST(CheckpointedStep, EvaluationAndRecomputationChangeNothingLater) {
  for (const auto strategy : {StrategyName::ddp, StrategyName::fsdp}) {
    std::map<std::pair<ActivationCheckpointing, bool>, std::string> hashes;
    std::map<ActivationCheckpointing, at::Tensor> random_states;
    std::map<ActivationCheckpointing, std::int64_t> peaks;
    for (const auto mode : kModes) {
      for (const bool evaluates : {false, true}) {
        const ShardedCase c{strategy, 1, Precision::bf16, mode, 2};
        SCOPED_TRACE(::testing::PrintToString(c));
        const auto recipe = sharded_recipe(c);
        run_trainers(recipe, sharded_config(c), 1, 0, [&](TestRank rank) {
          const auto rows = make_synthetic_rows(recipe.data.sequence_length, 101, 7);
          std::array<StepRecord, 3> records;
          for (std::size_t step = 0; step < 3; ++step) {
            if (step == 2 && evaluates) rank.trainer.evaluate(*rows);
            records[step] = rank.trainer.step();
          }
          EXPECT_EQ(records[2].peak_allocated_bytes, records[1].peak_allocated_bytes);
          EXPECT_EQ(records[2].recompute_seconds > 0, mode != ActivationCheckpointing::none);
          hashes[{mode, evaluates}] = rank.trainer.state_hash();
          random_states[mode] = rank.trainer.state_tensors().back().tensor.clone();
          peaks[mode] = records[2].peak_allocated_bytes;
        });
      }
    }
    for (const auto& [key, hash] : hashes) EXPECT_EQ(hash, hashes.begin()->second);
    for (const auto& [mode, state] : random_states) {
      EXPECT_TRUE(at::equal(state, random_states.begin()->second)) << name_of(mode);
    }
    EXPECT_LT(peaks[ActivationCheckpointing::full], peaks[ActivationCheckpointing::none]);
  }
}

}  // namespace
}  // namespace assay
