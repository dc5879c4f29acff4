#include "harness/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <mutex>

#include "harness/launch/rendezvous.h"
#include "harness/train/training_loop.h"
#include "tests/support/small_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trainer_run.h"

namespace assay {
namespace {

Recipe tiny_recipe(int world_size) {
  Recipe recipe;
  recipe.data.format = DataFormat::synthetic;
  recipe.data.sequence_length = 16;
  recipe.model.attention = AttentionChoice::flash;
  recipe.train.max_steps = 6;
  recipe.parallel.nproc_per_node = world_size;
  recipe.parallel.strategy = world_size > 1 ? StrategyName::ddp : StrategyName::none;
  return recipe;
}

// Both ranks must throw the same error, and it must name the rank whose loss is bad, not the one that hears of it
// first.
TEST(Trainer, ALossThatIsNotFiniteNamesItsRankAndUpdatesNothing) {
  std::vector<std::string> messages(2);
  std::vector<bool> unchanged(2);
  run_trainers(tiny_recipe(2), small_model_config(), 2, find_free_port(), [&](TestRank rank) {
    const at::NoGradGuard no_grad;
    auto& norm = rank.trainer.model().units()[1].parameters[0].value;
    if (rank.rank == 1) norm[3] = std::numeric_limits<float>::quiet_NaN();
    const auto progress = rank.trainer.progress();
    const at::AutoGradMode with_grad(true);
    try {
      rank.trainer.step();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), rank.rank == 1 ? ErrorKind::numeric : ErrorKind::communication);
      messages[static_cast<std::size_t>(rank.rank)] = error.what();
    }
    unchanged[static_cast<std::size_t>(rank.rank)] = rank.trainer.progress() == progress;
  });
  EXPECT_THAT(messages[0], ::testing::HasSubstr("first on rank 1: the weight model.layers.0.input_layernorm.weight"));
  EXPECT_THAT(messages[0], ::testing::HasSubstr("step 1 is not finite"));
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_TRUE(unchanged[0] && unchanged[1]);
}

TEST(Trainer, EvaluationLeavesTheTrainingStateAsItWasAndRepeatsItself) {
  const TemporaryFolder folder;
  const auto text = folder.path / "held_out.txt";
  std::ofstream(text) << std::string(16 * 11, 'x') << "tail";
  run_trainers(tiny_recipe(2), small_model_config(), 2, find_free_port(), [&](TestRank rank) {
    const auto rows = make_byte_rows({text}, 16, false, 1);
    rank.trainer.step();
    const auto before = rank.trainer.state_hash();
    const auto first = rank.trainer.evaluate(*rows);
    const auto second = rank.trainer.evaluate(*rows);
    EXPECT_EQ(rank.trainer.state_hash(), before);
    EXPECT_EQ(first.loss, second.loss);
    EXPECT_EQ(first.loss_tokens, 11 * 15);  // every row once, also where 11 rows do not fill the ranks
    rank.trainer.step();
    EXPECT_NE(rank.trainer.state_hash(), before);
  });
}

// Also where units stay gathered (no resharding), and where a tied head needs the first unit once more.
TEST(Trainer, EvaluationLeavesNothingGathered) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    auto recipe = tiny_recipe(1);
    recipe.parallel.strategy = StrategyName::fsdp;
    recipe.parallel.reshard_after_forward = tied;
    auto config = small_model_config();
    config.tie_word_embeddings = tied;
    run_trainers(recipe, config, 1, 0, [&](TestRank rank) {
      rank.trainer.step();
      const auto before = rank.ledger.by_category();
      const auto update_peak = rank.ledger.peak_by_phase()[static_cast<std::size_t>(Phase::update)];
      rank.trainer.evaluate(*make_synthetic_rows(recipe.data.sequence_length, config.vocab_size, 1));
      EXPECT_EQ(rank.ledger.by_category(), before);
      EXPECT_EQ(rank.ledger.peak_by_phase()[static_cast<std::size_t>(Phase::update)], update_peak);
    });
  }
}

// A run that evaluates and one that does not must train alike.
TEST(Trainer, EvaluationChangesNoLaterLoss) {
  const TemporaryFolder folder;
  const auto text = folder.path / "held_out.txt";
  std::ofstream(text) << std::string(64, 'y');
  std::vector<double> losses[2];
  for (const bool evaluates : {false, true}) {
    run_trainers(tiny_recipe(1), small_model_config(), 1, 0, [&](TestRank rank) {
      const auto rows = make_byte_rows({text}, 16, false, 1);
      for (int step = 0; step < 3; ++step) {
        losses[evaluates ? 1 : 0].push_back(rank.trainer.step().loss);
        if (evaluates) rank.trainer.evaluate(*rows);
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(TrainingLoop, ASignalOnOneRankStopsAllAfterTheSameStep) {
  run_trainers(tiny_recipe(2), small_model_config(), 2, find_free_port(), [&](TestRank rank) {
    std::int64_t asked = 0;
    LoopFeatures features;
    features.stop_signal = [&] { return ++asked == 3 && rank.rank == 1 ? 15 : 0; };
    EXPECT_EQ(run_training_loop(rank.trainer, 6, features), 15);
    EXPECT_EQ(rank.trainer.progress().step, 3);  // the step in which the signal came, none after it
  });
}

TEST(TrainingLoop, ASignalInTheLastStepDoesNotMakeAFinishedRunUnfinished) {
  run_trainers(tiny_recipe(1), small_model_config(), 1, 0, [&](TestRank rank) {
    LoopFeatures features;
    std::int64_t asked = 0;
    features.stop_signal = [&] { return ++asked == 6 ? 2 : 0; };
    EXPECT_EQ(run_training_loop(rank.trainer, 6, features), 0);
    EXPECT_EQ(rank.trainer.progress().step, 6);
  });
}

// G: the simulated capacity is a typed error to the byte of what is reserved: the peak fits, less does not; the process
// goes on.
TEST(Trainer, OutOfDeviceMemoryIsTypedAndALaterTrainerWorks) {
  auto recipe = tiny_recipe(1);
  const auto two_steps = [](TestRank rank) {
    rank.trainer.step();
    rank.trainer.step();
  };
  std::int64_t peak = 0;
  run_trainers(recipe, small_model_config(), 1, 0, [&](TestRank rank) {
    two_steps(rank);
    peak = rank.ledger.allocator().statistics().reserved.peak;
  });
  recipe.device_memory_bytes = peak - 1;
  EXPECT_THROW(run_trainers(recipe, small_model_config(), 1, 0, two_steps), c10::OutOfMemoryError);
  recipe.device_memory_bytes = peak;
  EXPECT_NO_THROW(run_trainers(recipe, small_model_config(), 1, 0, two_steps));
}

}  // namespace
}  // namespace assay
