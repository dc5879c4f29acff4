// A training that was killed or interrupted goes on as if nothing had been, bit for bit.
#include <gmock/gmock.h>

#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::HasSubstr;
using testing::Not;

// Steps long enough to be seen from outside before the next ones are done.
const Words kUnhurried{"data.sequence_length=128", "train.micro_batch_size=4"};

class Resume : public EndToEnd {
 protected:
  /// Kills the last rank with SIGKILL once this step is recorded.
  void train_until_killed(const std::string& output, int step, int world_size, const Words& more) {
    const int victim = world_size - 1;
    const auto attempts = events(job(output), victim, "run").size();
    BackgroundProgram training(program("assay"), command("train", output, more));
    const auto started = [&] { return events(job(output), victim, "run").size() > attempts || !training.running(); };
    ASSERT_TRUE(wait_until(started, kLongest));
    ASSERT_TRUE(wait_for_step(training, job(output), victim, step)) << training.err();
    ::kill(last_event(job(output), victim, "run")["pid"].get<int>(), SIGKILL);
    const auto result = training.finish(kLongest);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("rank " + std::to_string(victim) + " on "));
    EXPECT_THAT(result.err, HasSubstr("SIGKILL"));
  }

  /// The step from which the last attempt went on, or -1.
  int restored_step(const std::string& output, int rank = 0) const {
    for (const auto& event :
         events(job(output), rank, "checkpoint", last_event(job(output), rank, "run")["attempt"].get<int>())) {
      if (event.value("restored", false)) return event["restored_step"].get<int>();
    }
    return -1;
  }
};

class ResumeOfRanks : public Resume, public testing::WithParamInterface<int> {
 protected:
  const int world_size = GetParam();
  const Words options = kUnhurried + Words{"parallel.nproc_per_node=" + std::to_string(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(NumProcesses, ResumeOfRanks, testing::Values(1, 2), testing::PrintToStringParamName());

// A02, A40: what is restored is all of the state, on every rank, before the first new step.
TEST_P(ResumeOfRanks, AKilledTrainingEndsAsTheStraightOne) {
  train("straight", options);
  train_until_killed("killed", 12, world_size, options);
  train("killed", options);
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(restored_step("killed", rank), 10);
    EXPECT_EQ(events(job("killed"), rank, "step", 2).front()["step"], 11);
  }
  expect_same_training(job("straight"), job("killed"), world_size);
}

// A25, A28, A29: counters, learning rates and moments after two resumes in a row, the second from a save of a resumed
// run.
TEST_P(ResumeOfRanks, TwoResumesInARowChangeNothing) {
  const auto often = options + Words{"checkpoint.interval=5"};
  train("straight", often);
  train_until_killed("killed", 7, world_size, often);
  train_until_killed("killed", 12, world_size, often);
  EXPECT_EQ(restored_step("killed"), 5);
  train("killed", often);
  EXPECT_EQ(restored_step("killed"), 10);
  expect_same_training(job("straight"), job("killed"), world_size);
}

// C01: also the loss scale, masters beside weights of another dtype, and moments in bf16 go on where they were.
TEST_F(Resume, EveryStrategyAndPrecisionEndsAsTheStraightOne) {
  const std::vector<Words> cases{
      {"parallel.strategy=zero1", "train.precision=bf16"},
      {"parallel.strategy=zero2", "train.precision=fp16", "train.loss_scale.growth_interval=3"},
      {"parallel.strategy=fsdp", "train.precision=pure_bf16", "train.activation_checkpointing=full"},
      {"parallel.strategy=fsdp", "train.activation_checkpointing=selective"}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i][0] + " " + cases[i][1]);
    const auto options = kUnhurried + cases[i];
    const std::string straight = "straight" + std::to_string(i), killed = "killed" + std::to_string(i);
    train(straight, options);
    train_until_killed(killed, 12, 2, options);
    train(killed, options);
    EXPECT_EQ(restored_step(killed), 10);
    expect_same_training(job(straight), job(killed), 2);
  }
}

TEST_F(Resume, ADamagedCheckpointIsPassedOverAndSaidSo) {
  const auto options = kUnhurried + Words{"checkpoint.interval=5"};
  train("straight", options);
  train_until_killed("killed", 12, 2, options);
  const auto newest = job("killed") / "checkpoints" / "step_00000010";
  {
    std::fstream file(newest / "rank_00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(20000);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(20000);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  const auto result = assay(command("train", "killed", options));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("skipped damaged checkpoint " + newest.string()));
  EXPECT_EQ(restored_step("killed"), 5);
  EXPECT_EQ(restored_step("killed", 1), 5);
  expect_same_training(job("straight"), job("killed"), 2);
}

TEST_F(Resume, ADamagedJobFileIsWrittenAgain) {
  train("straight", kUnhurried);
  train_until_killed("killed", 12, 2, kUnhurried);
  std::ofstream(job("killed") / "job.json") << "{\"kind\": \"tr";
  const auto result = assay(command("train", "killed", kUnhurried));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr((job("killed") / "job.json").string() + " is damaged and is written again"));
  EXPECT_EQ(restored_step("killed"), 10);
  EXPECT_EQ(last_event(job("killed"), 0, "run")["attempt"], 2);
  expect_same_training(job("straight"), job("killed"), 2);
}

TEST_F(Resume, AnotherRecipeIsRefusedUntilTheChangeIsAllowed) {
  const auto options = kUnhurried + Words{"parallel.nproc_per_node=1"};
  train_until_killed("killed", 12, 1, options);
  const auto changed = options + Words{"optimizer.learning_rate=1e-3"};
  const auto refused = assay(command("train", "killed", changed));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("optimizer.learning_rate: 0.003 and 0.001"));
  EXPECT_THAT(refused.err, HasSubstr("--allow-change"));
  EXPECT_EQ(events(job("killed"), 0, "run").size(), 1U) << "something was started";
  const auto wrong = assay(command("train", "killed", changed + Words{"--allow-change", "optimizer.eps"}));
  EXPECT_EQ(wrong.exit_code, 2);

  const auto allowed = assay(command("train", "killed", changed + Words{"--allow-change", "optimizer.learning_rate"}));
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_EQ(restored_step("killed"), 10);
  const auto before = events(job("killed"), 0, "step", 1), after = events(job("killed"), 0, "step", 2);
  ASSERT_EQ(after.size(), 10U);
  EXPECT_NEAR(after[0]["learning_rate"].get<double>() * 3, before[10]["learning_rate"].get<double>(), 1e-9);
}

// A41: a run that has ended is not trained again.
TEST_F(Resume, AFinishedRunHasNothingToDo) {
  train("straight");
  const auto again = assay(command("train", "straight"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("nothing to do"));
  EXPECT_EQ(events(job("straight"), 0, "run").size(), 1U);
  const auto other = assay(command("train", "straight", {"train.max_steps=30"}));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("train.max_steps"));
}

// A41: from a checkpoint of the last step no step is made, and nothing changes.
TEST_F(Resume, FromTheLastStepNoStepIsMade) {
  train("straight");
  train("copy", {"resume=" + (run("straight") / "checkpoints/step_00000020").string()});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(events(job("copy"), rank, "step").size(), 0U);
    EXPECT_EQ(last_event(job("copy"), rank, "end")["state_hash"],
              last_event(job("straight"), rank, "end")["state_hash"]);
    EXPECT_EQ(last_event(job("copy"), rank, "end")["samples_used"], 160);
  }
}

class ResumeAfterSignal : public Resume, public testing::WithParamInterface<int> {
 protected:
  std::string saved_random_state(int step, int rank) const {
    char name[64];
    std::snprintf(name, sizeof name, "checkpoints/step_%08d/rank_%05d.safetensors", step, rank);
    const auto [begin, end] = place_of_tensor(job("stopped") / name, "random_state");
    return read_text_file(job("stopped") / name).substr(begin, end - begin);
  }
};
INSTANTIATE_TEST_SUITE_P(Signals, ResumeAfterSignal, testing::Values(SIGINT, SIGTERM),
                         testing::PrintToStringParamName());

// A34, A40: the state that each rank restores is the one it had when it saved.
TEST_P(ResumeAfterSignal, ThePrintedCommandGoesOnToTheSameEnd) {
  train("straight", kUnhurried);
  BackgroundProgram training(program("assay"), command("train", "stopped", kUnhurried));
  ASSERT_TRUE(wait_for_step(training, job("stopped"), 0, 3)) << training.err();
  training.send(GetParam());
  const auto result = training.finish(kLongest);
  EXPECT_EQ(result.exit_code, 3);

  std::string resume;
  for (const auto& line : split_lines(result.err)) {
    if (line.starts_with("  assay train ")) resume = line;
  }
  ASSERT_NE(resume, "") << result.err;
  const int saved = last_event(job("stopped"), 0, "checkpoint")["saved_step"].get<int>();
  EXPECT_EQ(last_event(job("stopped"), 0, "checkpoint")["reason"], "signal");
  EXPECT_GE(saved, 3);
  EXPECT_LT(saved, 20);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(last_event(job("stopped"), rank, "step")["step"], saved) << "the step was not finished, or not saved";
    EXPECT_EQ(last_event(job("stopped"), rank, "end")["stopped_by"], SIGTERM) << "the launcher passes it on as SIGTERM";
  }

  EXPECT_NE(saved_random_state(saved, 0), saved_random_state(saved, 1)) << "each rank has a random stream of its own";

  const auto resumed = run_program("/bin/sh", {"-c", resume}, kLongest,
                                   {.environment = {{"PATH", std::string(ASSAY_BINARY_DIR) + ":/usr/bin:/bin"}}});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  for (int rank = 0; rank < 2; ++rank) {
    const auto restored = last_event(job("stopped"), rank, "run", 2)["state_hash"];
    EXPECT_EQ(restored, last_event(job("stopped"), 0, "run", 2)["state_hash"]);
    EXPECT_EQ(restored, last_event(job("stopped"), rank, "end", 1)["state_hash"]);
  }
  expect_same_training(job("straight"), job("stopped"), 2);
}

/// Frozen parameters (a learning rate whose updates vanish) and one row a step, so that the loss of a step tells which
/// row it was: 40 rows, 3 epochs.
class ResumeOfData : public Resume {
 protected:
  ResumeOfData() {
    std::ofstream text(folder.path / "rows.txt");
    unsigned state = 1;
    for (int i = 0; i < 40 * 16; ++i) {
      state = state * 1664525U + 1013904223U;
      text << static_cast<char>('a' + (state >> 24) % 26);
    }
  }
  Words options(int world_size) const {
    return {"data.path=" + (folder.path / "rows.txt").string(),
            "data.sequence_length=16",
            "train.micro_batch_size=1",
            "train.gradient_accumulation_steps=1",
            "train.max_steps=" + std::to_string(120 / world_size),
            "optimizer.learning_rate=1e-30",
            "schedule.name=constant",
            "checkpoint.interval=13",
            "checkpoint.keep_latest=20",
            "parallel.nproc_per_node=" + std::to_string(world_size)};
  }
  std::vector<std::string> rows_of(const std::string& output, int epoch) const {
    std::vector<std::string> rows;
    for (const auto& [step, loss] : by_step(job(output), 0, "loss")) {
      if ((step - 1) / 40 == epoch) rows.push_back(loss);
    }
    return rows;
  }
};

// A05, A07, A08, A35, A43.
TEST_F(ResumeOfData, EveryRowOnceAnEpochInNewOrderAlsoAfterAResumeInTheMiddle) {
  train("straight", options(1));
  const auto first = rows_of("straight", 0);
  const std::set<std::string> all(first.begin(), first.end());
  ASSERT_EQ(all.size(), 40U) << "a row twice, or two rows with one loss";
  for (int epoch = 1; epoch < 3; ++epoch) {
    const auto rows = rows_of("straight", epoch);
    EXPECT_EQ(std::set<std::string>(rows.begin(), rows.end()), all) << "epoch " << epoch;
    EXPECT_NE(rows, rows_of("straight", epoch - 1)) << "epoch " << epoch;
  }
  // Step 52 is in the middle of the second epoch, 26 of the first.
  for (const char* step : {"00000026", "00000052"}) {
    const std::string output = std::string("resumed_") + step;
    train(output, options(1) + Words{"resume=" + (run("straight") / "checkpoints/step_").string() + step});
    const auto expected = by_step(job("straight"), 0, "loss", std::stoi(step) + 1);
    EXPECT_EQ(by_step(job(output), 0, "loss"), expected);
    EXPECT_EQ(last_event(job(output), 0, "end")["samples_used"], 120);
  }
}

// A43: ranks take the rows in turn, none twice.
TEST_F(ResumeOfData, RanksNeverShareARow) {
  train("one", options(1));
  train("two", options(2));
  const auto rows = by_step(job("one"), 0, "loss");
  const auto pairs = by_step(job("two"), 0, "loss");
  ASSERT_EQ(pairs.size(), 60U);
  for (const auto& [step, loss] : pairs) {
    EXPECT_NEAR(std::stod(loss), (std::stod(rows.at(2 * step - 1)) + std::stod(rows.at(2 * step))) / 2, 1e-6) << step;
  }
}

}  // namespace
}  // namespace assay
