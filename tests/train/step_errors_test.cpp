#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "harness/recipe/enum_names.h"
#include "sharding/partition.h"
#include "tests/support/batch_job.h"
#include "tests/support/sharded_run.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

constexpr StrategyName kStrategies[] = {StrategyName::ddp, StrategyName::zero2, StrategyName::fsdp};

// An allocation is refused at many places of the second step, one after the other, with other weights than those
// that are restored then. However far it came, the next step is the one of a trainer that was never disturbed.
TEST(StepErrors, AfterOutOfMemoryTheNextStepIsThatOfAnUndisturbedTrainer) {
  constexpr int kPlaces = 12;
  for (const auto strategy : kStrategies) {
    for (const auto precision : {Precision::fp32, Precision::bf16}) {
      for (const auto checkpointing : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
        const ShardedCase c{strategy, 1, precision, checkpointing, 2};
        SCOPED_TRACE(::testing::PrintToString(c));
        std::array<std::string, 2> expected;
        std::int64_t peak = 0;
        std::int64_t num_events = 0;
        run_trainers(sharded_recipe(c), sharded_config(c), 1, 0, [&](TestRank rank) {
          rank.trainer.step();
          num_events = rank.ledger.num_events();
          peak = rank.trainer.step().peak_reserved_bytes;
          num_events = rank.ledger.num_events() - num_events;
          expected[0] = rank.trainer.state_hash();
          rank.trainer.step();
          expected[1] = rank.trainer.state_hash();
        });
        run_trainers(sharded_recipe(c), sharded_config(c), 1, 0, [&](TestRank rank) {
          rank.trainer.step();
          const std::int64_t kept = rank.ledger.allocated_bytes();
          const auto progress = rank.trainer.progress();
          std::vector<at::Tensor> saved;
          for (const auto& state : rank.trainer.state_tensors()) {
            const UntrackedScope untracked;
            saved.push_back(state.tensor.clone());
            if (state.name.rfind("parameters.", 0) == 0) state.tensor.mul_(2);
          }
          rank.trainer.publish_parameters();
          const std::string before = rank.trainer.state_hash();
          for (int place = 0; place < kPlaces; ++place) {
            rank.ledger.refuse_at(rank.ledger.num_events() + num_events * place / kPlaces);
            EXPECT_THROW(rank.trainer.step(), c10::OutOfMemoryError) << place;
          }
          EXPECT_EQ(rank.trainer.state_hash(), before);
          const auto states = rank.trainer.state_tensors();
          for (std::size_t i = 0; i < states.size(); ++i) states[i].tensor.copy_(saved[i]);
          rank.trainer.finish_restore(progress);
          rank.ledger.allocator().set_capacity(peak, peak);  // nothing of the failed steps is left
          rank.trainer.step();
          EXPECT_EQ(rank.trainer.state_hash(), expected[0]);
          EXPECT_EQ(rank.ledger.allocated_bytes(), kept);
          rank.trainer.step();
          EXPECT_EQ(rank.trainer.state_hash(), expected[1]);
        });
      }
    }
  }
}

/// What the ranks of a job say when its first step fails.
std::array<std::string, 2> messages_of(const Recipe& recipe, const std::function<void(TestRank)>& damage) {
  std::array<std::string, 2> messages;
  run_trainers(recipe, small_job_config(), 2, find_free_port(), [&](TestRank rank) {
    damage(rank);
    const auto progress = rank.trainer.progress();
    try {
      rank.trainer.step();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(rank.rank)] = error.what();
    }
    EXPECT_EQ(rank.trainer.progress(), progress);
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages;
}

Recipe recipe_of(StrategyName strategy, Precision precision, const std::vector<std::int64_t>& trained,
                 const TemporaryFolder& folder) {
  Recipe recipe = batches_recipe({2, 1, 1, 1}, rows_with(trained), folder.path / "batches.safetensors");
  recipe.parallel.strategy = strategy;
  recipe.train.precision = precision;
  return recipe;
}

// A weight that rank 1 owns; where weights are gathered, rank 0 reads it as well.
TEST(StepErrors, AWeightThatIsNotFiniteIsNamedByTheRankThatOwnsIt) {
  const std::size_t unit = 2;
  for (const auto strategy : kStrategies) {
    for (const auto precision : {Precision::fp32, Precision::bf16}) {
      SCOPED_TRACE(std::string(name_of(strategy)) + ", " + std::string(name_of(precision)));
      const TemporaryFolder folder;
      std::string name;
      const auto messages = messages_of(recipe_of(strategy, precision, {9, 15}, folder), [&](TestRank rank) {
        if (rank.rank == 1) {
          const Unit& damaged = rank.trainer.model().units()[unit];
          std::vector<FlatParameterSize> sizes;
          for (const auto& parameter : damaged.parameters) sizes.push_back({parameter.numel(), parameter.decayed()});
          const FlatLayout layout = make_flat_layout(sizes, 2);
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            const std::int64_t place = layout.shard_numel - layout.offsets[i];
            if (place >= 0 && place < sizes[i].numel) name = damaged.parameters[i].name;
          }
          for (const auto& state : rank.trainer.state_tensors()) {
            if (state.name == "parameters." + damaged.name) state.tensor[0].fill_(std::nanf(""));
          }
        }
        rank.trainer.publish_parameters();
      });
      EXPECT_NE(name, "");
      EXPECT_THAT(messages[0], HasSubstr("step 1 is not finite"));
      EXPECT_THAT(messages[0], HasSubstr("first on rank 1: the weight " + name + ";"));
    }
  }
}

// fp16: the embedding of a token that only rank 1 reads is the largest number there is, and the first block adds to it.
TEST(StepErrors, AnOutputThatIsNotFiniteIsNamedByRankAndUnit) {
  const auto rows = rows_with({9, 15});
  const auto& of_rank_0 = rows[0].input_ids;
  const auto own = std::find_if(rows[1].input_ids.begin(), rows[1].input_ids.end(), [&](std::int64_t id) {
    return std::find(of_rank_0.begin(), of_rank_0.end(), id) == of_rank_0.end();
  });
  ASSERT_NE(own, rows[1].input_ids.end());
  for (const auto strategy : kStrategies) {
    SCOPED_TRACE(name_of(strategy));
    const TemporaryFolder folder;
    const auto messages = messages_of(recipe_of(strategy, Precision::fp16, {9, 15}, folder), [&](TestRank rank) {
      const auto& units = rank.trainer.model().units();
      at::Tensor embedding = at::zeros(units[0].parameters[0].shape);
      embedding.uniform_(-1, 1, at::make_generator<at::CPUGeneratorImpl>(1));
      embedding[*own].fill_(65504);
      rank.trainer.write_parameter(0, 0, embedding);
      for (std::size_t i = 0; i < units[1].parameters.size(); ++i) {
        const auto& parameter = units[1].parameters[i];
        if (parameter.name.find("down_proj") == std::string::npos) continue;
        at::Tensor values = at::zeros(parameter.shape);
        values.uniform_(-100, 100, at::make_generator<at::CPUGeneratorImpl>(2));
        rank.trainer.write_parameter(1, i, values);
      }
      rank.trainer.publish_parameters();
    });
    EXPECT_THAT(messages[0], HasSubstr("first on rank 1: the output of model.layers.0;"));
  }
}

// fp16 at its lowest loss scale; rank 0 has no trained token, so its gradients are zero.
TEST(StepErrors, AGradientThatIsNotFiniteIsNamedByRankAndParameter) {
  for (const auto strategy : kStrategies) {
    SCOPED_TRACE(name_of(strategy));
    const TemporaryFolder folder;
    Recipe recipe = recipe_of(strategy, Precision::fp16, {0, 15}, folder);
    recipe.train.loss_scale.initial = recipe.train.loss_scale.minimum = 0x1p40;
    const auto messages = messages_of(recipe, [](TestRank) {});
    EXPECT_THAT(messages[0], HasSubstr("first on rank 1: the gradient of model.norm.weight;"));
  }
}

}  // namespace
}  // namespace assay
