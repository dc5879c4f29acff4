#include "checkpoint/checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "checkpoint/checkpoint_folder.h"
#include "tests/checkpoint/checkpoint_files.h"
#include "tests/checkpoint/rank_state.h"
#include "tests/checkpoint/thread_group.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

TEST(Checkpointer, RestoresEveryByteOnEveryRank) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(4, [&](RankGroup& group) {
    Checkpointer checkpointer(folder.path / "checkpoints", 2, group);
    RankState fresh(group.rank(), 0);
    EXPECT_FALSE(checkpointer.restore_newest(fresh.destinations()));
    EXPECT_EQ(fresh, RankState(group.rank(), 0));

    const auto saved = save_step(checkpointer, group, 5);
    EXPECT_EQ(saved.path, folder.path / "checkpoints/step_00000005");
    const auto restored = checkpointer.restore_newest(fresh.destinations());
    ASSERT_TRUE(restored);
    fresh.position = restored->rank_state;
    EXPECT_EQ(fresh, RankState(group.rank(), 5));
    EXPECT_EQ(restored->step, 5);
    EXPECT_EQ(restored->path, saved.path);
    EXPECT_EQ(restored->size_bytes, saved.size_bytes);
    EXPECT_THAT(restored->skipped, IsEmpty());
    EXPECT_EQ(restored->manifest.run.recipe, run_description().recipe);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(names_in(folder.path / "checkpoints/step_00000005"),
              UnorderedElementsAre("manifest.json", "rank_00000.safetensors", "rank_00001.safetensors",
                                   "rank_00002.safetensors", "rank_00003.safetensors"));
}

// Larger than several chunks, with tensors that begin and end inside them.
TEST(Checkpointer, RestoresTensorsAcrossChunks) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(1, [&](RankGroup& group) {
    int num_chunks = 0;
    Checkpointer checkpointer(folder.path, 1, group, [&num_chunks] { ++num_chunks; });
    constexpr std::size_t count = 5'000'001;  // 20 MB and 5 MB
    save_step(checkpointer, group, 3, count);
    EXPECT_EQ(num_chunks, 3);
    RankState state(9, 9, count);
    const auto restored = checkpointer.restore_newest(state.destinations());
    ASSERT_TRUE(restored);
    EXPECT_EQ(num_chunks, 3 + 2) << "the first one is read for its header";
    state.position = restored->rank_state;
    EXPECT_TRUE(state == RankState(0, 3, count));
    EXPECT_GT(restored->manifest.files[0].chunk_checksums.size(), 2U);
  });
  EXPECT_THAT(errors, Each(""));
}

// Twenty saves with a rank that is late: only rank 0 renames and removes, and never more is there than asked for (A16,
// A17, A19).
TEST(Checkpointer, ASlowRankLosesNothing) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(4, [&](RankGroup& group) {
    Checkpointer checkpointer(folder.path, 1, group);
    for (std::int64_t step = 1; step <= 20; ++step) {
      if (group.rank() == step % 4) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      save_step(checkpointer, group, step);
      // No rank can begin the next save before this one has.
      EXPECT_THAT(names_in(folder.path), ElementsAre(step_folder_name(step)));
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(names_in(folder.path), ElementsAre("step_00000020"));
  EXPECT_EQ(names_in(folder.path / "step_00000020").size(), 5U);
}

// A13: a complete checkpoint exists at every instant, seen from outside while saves replace each other.
TEST(Checkpointer, AtEveryInstantACompleteCheckpointExists) {
  const TemporaryFolder folder;
  std::atomic<bool> begun = false;
  std::atomic<bool> ended = false;
  int looks = 0;
  std::thread watcher([&] {
    while (!ended) {
      if (!begun) continue;
      // A listing is no snapshot; a name that was renamed while it ran may be missed, but not twice in a row for long.
      bool found = false;
      for (int attempt = 0; attempt < 50 && !found; ++attempt) found = !list_complete(folder.path).empty();
      EXPECT_TRUE(found);
      ++looks;
    }
  });
  const auto errors = run_ranks(2, [&](RankGroup& group) {
    Checkpointer checkpointer(folder.path, 1, group);
    save_step(checkpointer, group, 1);
    begun = true;
    for (std::int64_t i = 0; i < 30; ++i) save_step(checkpointer, group, 1 + i / 3);  // new steps, and the same again
  });
  ended = true;
  watcher.join();
  EXPECT_THAT(errors, Each(""));
  EXPECT_GT(looks, 10);
}

TEST(Checkpointer, KeepsTheLatestAndSaysWhatItRemoved) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(2, [&](RankGroup& group) {
    Checkpointer checkpointer(folder.path, 2, group);
    save_step(checkpointer, group, 2);
    EXPECT_THAT(save_step(checkpointer, group, 4).removed, IsEmpty());
    EXPECT_THAT(save_step(checkpointer, group, 6).removed, ElementsAre(folder.path / "step_00000002"));
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(names_in(folder.path), UnorderedElementsAre("step_00000004", "step_00000006"));
}

// A20: what a killed save left is never read, and the same step saves normally afterwards.
TEST(Checkpointer, ASaveThatWasCutShortIsIgnoredAndTidied) {
  const TemporaryFolder folder;
  const auto save = [&](std::int64_t step) {
    EXPECT_THAT(run_ranks(2,
                          [&](RankGroup& group) {
                            Checkpointer checkpointer(folder.path, 2, group);
                            save_step(checkpointer, group, step);
                          }),
                Each(""));
  };
  save(3);
  // As kill -9 leaves it: one rank's file whole, the other's cut; once even with a manifest, before the rename.
  for (const auto* left : {"step_00000006.tmp-0123", "step_00000006.tmp-4567"}) {
    std::filesystem::copy(folder.path / "step_00000003", folder.path / left);
    std::filesystem::resize_file(folder.path / left / "rank_00001.safetensors", 100);
  }
  std::filesystem::remove(folder.path / "step_00000006.tmp-0123/manifest.json");
  EXPECT_THAT(run_ranks(2,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder.path, 2, group);
                          RankState state(7, 7);
                          EXPECT_EQ(checkpointer.restore_newest(state.destinations())->step, 3);
                          save_step(checkpointer, group, 6);
                        }),
              Each(""));
  EXPECT_THAT(names_in(folder.path), UnorderedElementsAre("step_00000003", "step_00000006"));
}

// A25, A41: two resumes in a row, a save straight after a restore, and a step saved again.
TEST(Checkpointer, TwoResumesInARowGiveTheSameBytes) {
  const TemporaryFolder folder;
  std::vector<std::string> files;
  for (int leg = 0; leg < 3; ++leg) {
    EXPECT_THAT(run_ranks(2,
                          [&](RankGroup& group) {
                            Checkpointer checkpointer(folder.path, 2, group);
                            RankState state(group.rank(), 5);
                            const auto restored = checkpointer.restore_newest(state.destinations());
                            EXPECT_EQ(restored.has_value(), leg > 0);
                            if (restored) state.position = restored->rank_state;
                            checkpointer.save(5, state.bytes(), state.position, run_description());
                          }),
                Each(""));
    files.push_back(read_file(folder.path / "step_00000005/rank_00001.safetensors"));
    EXPECT_THAT(names_in(folder.path), ElementsAre("step_00000005"));
  }
  EXPECT_EQ(files[1], files[0]);
  EXPECT_EQ(files[2], files[0]);
}

// A17, A22: one rank cannot write; all stop with the same error, the old checkpoint stays, nothing of the new one does.
TEST(Checkpointer, AFailureOnOneRankIsAnErrorOnAllThatNamesIt) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(3, [&](RankGroup& group) {
    Checkpointer checkpointer(folder.path, 1, group);
    save_step(checkpointer, group, 4);
    const RankState state(group.rank(), 8);
    auto tensors = state.bytes();
    if (group.rank() == 2) tensors[0].size_bytes -= 1;
    checkpointer.save(8, tensors, state.position, run_description());
  });
  EXPECT_THAT(errors,
              Each(AllOf(StartsWith("internal: saving step 8"), HasSubstr("rank 2: "), HasSubstr("model.weight"))));
  EXPECT_THAT(names_in(folder.path), ElementsAre("step_00000004"));
}

TEST(Checkpointer, RanksThatSaveDifferentStepsAreStopped) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(2, [&](RankGroup& group) {
    Checkpointer checkpointer(folder.path, 1, group);
    save_step(checkpointer, group, 4 + group.rank());
  });
  EXPECT_THAT(errors, Each(AllOf(StartsWith("internal: "), HasSubstr("another step"))));
  EXPECT_THAT(names_in(folder.path), IsEmpty());
}

// A22 with a real limit of the kernel, in a child process because the limit holds for all of it.
TEST(Checkpointer, AFileThatMayNotGrowLeavesTheOldCheckpointUntouched) {
  const TemporaryFolder folder;
  ASSERT_THAT(run_ranks(2,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder.path, 1, group);
                          save_step(checkpointer, group, 4);
                        }),
              Each(""));
  const auto before = read_file(folder.path / "step_00000004/rank_00000.safetensors");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto errors = run_ranks(2, [&](RankGroup& group) {
      Checkpointer checkpointer(folder.path, 1, group);
      save_step(checkpointer, group, 8, group.rank() == 1 ? 1'000'000 : 1000);
    });
    bool right = true;
    for (const auto& error : errors) {
      right = right && error.starts_with("io: saving step 8") && error.find("rank 1: write") != std::string::npos &&
              error.find("File too large") != std::string::npos;
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(names_in(folder.path), ElementsAre("step_00000004"));
  EXPECT_EQ(read_file(folder.path / "step_00000004/rank_00000.safetensors"), before);
}

}  // namespace
}  // namespace assay
