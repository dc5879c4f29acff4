// What tells the launcher that a rank goes on: it must come within every part that may take long as a whole.
#include "harness/train/rank_events.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/small_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trainer_run.h"

namespace assay {
namespace {

TEST(RankEvents, BeatsWithinAPhase) {
  const TemporaryFolder folder;
  const auto file = folder.path / "heartbeat";
  ASSERT_EQ(::setenv(kHeartbeatVariable, file.c_str(), 1), 0);
  const SystemClock clock;
  const MemoryLedger ledger;
  Job job;
  job.folder = folder.path;
  RankEvents events(job, clock, ledger);
  ::unsetenv(kHeartbeatVariable);
  events.enter(Phase::backward, 3);
  const Heartbeat launcher(file);
  const auto before = launcher.read();
  events.beat();
  EXPECT_EQ(launcher.read().num_beats, before.num_beats + 1);
  EXPECT_EQ(launcher.read().phase, Phase::backward);
  EXPECT_EQ(launcher.read().step, 3);
}

TEST(RankEvents, TheTrainerTellsOfEveryParameterAndUnit) {
  Recipe recipe;
  recipe.data.sequence_length = 16;
  recipe.model.attention = AttentionChoice::flash;
  recipe.parallel.strategy = StrategyName::none;
  recipe.train.gradient_accumulation_steps = 3;
  const auto config = small_model_config();
  const SystemClock clock;
  MemoryLedger ledger;
  const auto device = make_cpu_device(1);
  const auto communicator = make_fake_communicator(0, 1, clock);
  const auto rows = make_synthetic_rows(recipe.data.sequence_length, config.vocab_size, 1);
  std::size_t told = 0;
  Trainer trainer(recipe, config, {*device, *communicator, clock, ledger, *rows, {}, [&told] { ++told; }});
  std::size_t num_parameters = 0;
  for (const auto& unit : trainer.model().units()) num_parameters += unit.parameters.size();
  trainer.initialize_parameters();
  EXPECT_EQ(told, num_parameters);
  told = 0;
  trainer.step();
  EXPECT_GE(told, 3 * (2 * trainer.model().units().size() - 1)) << "forward and backward of every micro-step";
}

}  // namespace
}  // namespace assay
