#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/checkpointer.h"
#include "tests/checkpoint/checkpoint_files.h"
#include "tests/checkpoint/rank_state.h"
#include "tests/checkpoint/thread_group.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 2;

/// Two checkpoints of two ranks, steps 3 and 6; a test damages them.
class CheckpointerDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(run_ranks(kRanks,
                          [&](RankGroup& group) {
                            Checkpointer checkpointer(folder_.path, 2, group);
                            save_step(checkpointer, group, 3);
                            save_step(checkpointer, group, 6);
                          }),
                Each(""));
  }

  /// Expects that every rank skips step 6, saying why, and gets all of step 3.
  void expect_step_3(const std::string& reason) {
    const auto errors = run_ranks(kRanks, [&](RankGroup& group) {
      Checkpointer checkpointer(folder_.path, 2, group);
      RankState state(9, 9);
      const auto restored = checkpointer.restore_newest(state.destinations());
      ASSERT_TRUE(restored);
      state.position = restored->rank_state;
      EXPECT_EQ(state, RankState(group.rank(), 3));
      EXPECT_EQ(restored->step, 3);
      ASSERT_EQ(restored->skipped.size(), 1U);
      EXPECT_EQ(restored->skipped[0].path, newest_);
      EXPECT_THAT(restored->skipped[0].reason, HasSubstr(reason));
    });
    EXPECT_THAT(errors, Each(""));
  }

  /// The Error that every rank gets from restoring with these destinations.
  std::vector<std::string> errors_with(const std::function<void(std::vector<TensorDestination>&)>& change,
                                       int world_size = kRanks) {
    return run_ranks(world_size, [&](RankGroup& group) {
      Checkpointer checkpointer(folder_.path, 2, group);
      RankState state(9, 9);
      auto destinations = state.destinations();
      if (group.rank() == world_size - 1) change(destinations);
      checkpointer.restore_newest(destinations);
    });
  }

  void change_file(const std::filesystem::path& path, const std::function<void(std::string&)>& change) {
    auto bytes = read_file(path);
    change(bytes);
    write_file(path, bytes);
  }

  TemporaryFolder folder_;
  std::filesystem::path newest_ = folder_.path / "step_00000006";
  std::filesystem::path shard_ = newest_ / "rank_00001.safetensors";
};

TEST_F(CheckpointerDamage, ATruncatedShard) {
  std::filesystem::resize_file(shard_, std::filesystem::file_size(shard_) - 1);
  expect_step_3("rank 1: " + shard_.string() + " has");
}

TEST_F(CheckpointerDamage, AnEmptyShard) {
  std::filesystem::resize_file(shard_, 0);
  expect_step_3("rank_00001.safetensors has 0 bytes");
}

TEST_F(CheckpointerDamage, AShardThatGrew) {
  change_file(shard_, [](std::string& bytes) { bytes += '\0'; });
  expect_step_3("rank_00001.safetensors has");
}

TEST_F(CheckpointerDamage, AShardFullOfZeros) {
  change_file(shard_, [](std::string& bytes) { bytes.assign(bytes.size(), '\0'); });
  expect_step_3("are not those that were written (checksum)");
}

TEST_F(CheckpointerDamage, AMissingShard) {
  std::filesystem::remove(shard_);
  expect_step_3("there is no file " + shard_.string());
}

TEST_F(CheckpointerDamage, AShardOfAnotherStep) {
  std::filesystem::copy_file(folder_.path / "step_00000003/rank_00001.safetensors", shard_,
                             std::filesystem::copy_options::overwrite_existing);
  expect_step_3("rank_00001.safetensors");
}

// One bit anywhere: in the length, in the header (where it would read as another tensor), in the state, in the data.
TEST_F(CheckpointerDamage, AnyFlippedBit) {
  const auto whole = read_file(shard_);
  for (const std::size_t place : {std::size_t{0}, std::size_t{8}, std::size_t{12}, whole.find("model.weight"),
                                  whole.find("sample"), whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(place);
    auto bytes = whole;
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    write_file(shard_, bytes);
    expect_step_3("rank 1: " + shard_.string());
  }
}

TEST_F(CheckpointerDamage, AManifestThatIsCutChangedOrEmpty) {
  const auto path = newest_ / "manifest.json";
  const auto whole = read_file(path);
  for (const auto& text : {whole.substr(0, whole.size() / 2), std::string(), std::string("{}"),
                           std::string(whole).replace(whole.find("tiny"), 4, "tinx")}) {
    write_file(path, text);
    expect_step_3("rank 0: " + path.string());
  }
}

// Without a manifest a folder is not a checkpoint at all: nothing is skipped.
TEST_F(CheckpointerDamage, AMissingManifestMeansAbsent) {
  std::filesystem::remove(newest_ / "manifest.json");
  EXPECT_THAT(run_ranks(kRanks,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder_.path, 2, group);
                          RankState state(9, 9);
                          const auto restored = checkpointer.restore_newest(state.destinations());
                          EXPECT_EQ(restored->step, 3);
                          EXPECT_TRUE(restored->skipped.empty());
                        }),
              Each(""));
}

// A26: the ranks' files of different steps are never mixed, whichever rank's is damaged.
TEST_F(CheckpointerDamage, AllRanksTakeTheSameStep) {
  change_file(newest_ / "rank_00000.safetensors",
              [](std::string& bytes) { bytes.back() = static_cast<char>(bytes.back() ^ 1); });
  expect_step_3("rank 0: ");
}

TEST_F(CheckpointerDamage, NoWholeCheckpointIsAnErrorAndNotAFreshStart) {
  for (const auto* step : {"step_00000003", "step_00000006"})
    std::filesystem::remove(folder_.path / step / "rank_00000.safetensors");
  EXPECT_THAT(errors_with([](auto&) {}), Each(AllOf(StartsWith("io: no whole checkpoint is left"),
                                                    HasSubstr("step_00000006: "), HasSubstr("step_00000003: "))));
}

// A damaged checkpoint must not push whole ones out, and the step it stood for can be saved again.
TEST_F(CheckpointerDamage, DoesNotCountInLaterSaves) {
  std::filesystem::resize_file(shard_, 10);
  EXPECT_THAT(run_ranks(kRanks,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder_.path, 2, group);
                          RankState state(9, 9);
                          checkpointer.restore_newest(state.destinations());
                          save_step(checkpointer, group, 5);
                          EXPECT_TRUE(std::filesystem::exists(folder_.path / "step_00000003"));
                          EXPECT_FALSE(std::filesystem::exists(newest_));
                          save_step(checkpointer, group, 6);
                          EXPECT_EQ(checkpointer.restore_newest(state.destinations())->step, 6);
                        }),
              Each(""));
}

// Too many open files or a disk that is away for a moment is no damage: nothing is removed for it.
TEST_F(CheckpointerDamage, WhatCannotBeReadNowIsSkippedAndKept) {
  const auto away = folder_.path / "away";
  std::filesystem::rename(shard_, away);
  std::filesystem::create_symlink(shard_.filename(), shard_);  // to itself: open fails with ELOOP
  EXPECT_THAT(run_ranks(kRanks,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder_.path, 2, group);
                          RankState state(9, 9);
                          const auto restored = checkpointer.restore_newest(state.destinations());
                          EXPECT_EQ(restored->step, 3);
                          EXPECT_THAT(restored->skipped.at(0).reason, HasSubstr("rank 1: open "));
                          save_step(checkpointer, group, 5);
                        }),
              Each(""));
  std::filesystem::rename(away, shard_);
  EXPECT_THAT(run_ranks(kRanks,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder_.path, 2, group);
                          RankState state(9, 9);
                          EXPECT_EQ(checkpointer.restore_newest(state.destinations())->step, 6);
                        }),
              Each(""));
}

TEST_F(CheckpointerDamage, AChosenCheckpointThatIsDamagedIsRefused) {
  std::filesystem::resize_file(shard_, 10);
  EXPECT_THAT(run_ranks(kRanks,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder_.path, 2, group);
                          RankState state(9, 9);
                          EXPECT_EQ(checkpointer.restore(folder_.path / "step_00000003", state.destinations()).step, 3);
                          checkpointer.restore(newest_, state.destinations());
                        }),
              Each(AllOf(StartsWith("data: checkpoint "), HasSubstr("is damaged: rank 1"))));
}

// A01, A04: what is saved and what is there to receive it must be the same, in both directions.
TEST_F(CheckpointerDamage, TensorsThatDoNotFitAreRefusedByNameOnAllRanks) {
  EXPECT_THAT(errors_with([](auto& list) { list.pop_back(); }),
              Each(AllOf(StartsWith("recipe: restoring"), HasSubstr("rank 1: "),
                         HasSubstr("tensor \"optimizer.step\" is in the file, this run has no place for it"))));
  std::int64_t extra = 0;
  EXPECT_THAT(
      errors_with([&](auto& list) {
        list.push_back({"skipped_steps", "I64", {}, &extra, 8});
      }),
      Each(AllOf(StartsWith("recipe: "), HasSubstr("tensor \"skipped_steps\" of this run is not in the file"))));
  EXPECT_THAT(errors_with([](auto& list) {
                list[0].shape = {10, 100};
              }),
              Each(HasSubstr("tensor \"model.weight\" is F32 [1000] in the file, F32 [10,100] in this run")));
  // A32: another dtype is never converted.
  EXPECT_THAT(errors_with([](auto& list) { list[1].dtype = "F16"; }),
              Each(HasSubstr("tensor \"optimizer.exp_avg\" is BF16 [500,1] in the file, F16 [500,1] in this run")));
  EXPECT_THAT(errors_with([](auto& list) { list[0].size_bytes -= 4; }), Each(StartsWith("internal: ")));
}

TEST_F(CheckpointerDamage, AMismatchLeavesTheDestinationsUntouched) {
  RankState state(9, 9);
  run_ranks(kRanks, [&](RankGroup& group) {
    Checkpointer checkpointer(folder_.path, 2, group);
    RankState other(9, 9);
    auto destinations = (group.rank() == 0 ? state : other).destinations();
    destinations.pop_back();
    checkpointer.restore_newest(destinations);
  });
  EXPECT_EQ(state, RankState(9, 9));
}

TEST_F(CheckpointerDamage, AnotherNumberOfRanksIsRefusedWithBothNumbers) {
  EXPECT_THAT(errors_with([](auto&) {}, 3),
              Each(AllOf(StartsWith("recipe: "), HasSubstr("was saved by 2 ranks, this run has 3"))));
}

TEST_F(CheckpointerDamage, ANewerFormatIsRefusedAndNotTakenForDamage) {
  auto text = read_file(newest_ / "manifest.json");
  text.replace(text.find("\"format_version\": 1"), 19, "\"format_version\": 2");
  write_file(newest_ / "manifest.json", text);
  EXPECT_THAT(errors_with([](auto&) {}), Each(AllOf(StartsWith("usage: "), HasSubstr("format_version 2"))));
}

}  // namespace
}  // namespace assay
