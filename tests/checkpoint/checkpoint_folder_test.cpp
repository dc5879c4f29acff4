#include "checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/checkpoint_files.h"

namespace assay {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class CheckpointFolderTest : public ::testing::Test {
 protected:
  std::filesystem::path make(const std::string& name, const std::string& content = "x") {
    const auto path = folder_.path / name;
    std::filesystem::create_directories(path);
    write_file(path / "manifest.json", content);
    return path;
  }
  std::vector<std::string> complete() const {
    std::vector<std::string> names;
    for (const auto& checkpoint : list_complete(folder_.path)) names.push_back(checkpoint.path.filename().string());
    return names;
  }
  std::vector<std::string> all() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path))
      names.push_back(entry.path().filename().string());
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointFolderTest, NamesSortBeyondEightDigits) {
  EXPECT_EQ(step_folder_name(100), "step_00000100");
  EXPECT_EQ(step_folder_name(123456789), "step_123456789");
  EXPECT_EQ(rank_file_name(3), "rank_00003.safetensors");
  EXPECT_EQ(rank_file_name(123456), "rank_123456.safetensors");
}

TEST_F(CheckpointFolderTest, ListsCompleteOnesNewestFirstAndNothingElse) {
  for (const auto* name :
       {"step_00000005", "step_00000020", "step_123456789", "step_00000020.replaced", "step_00000030.tmp-1f", "step_7",
        "step_00000009x", "step_0000000a", "steps_00000001", "best"}) {
    make(name);
  }
  std::filesystem::create_directories(folder_.path / "step_00000040");  // no manifest
  write_file(folder_.path / "step_00000050", "a file");
  EXPECT_THAT(complete(), ElementsAre("step_123456789", "step_00000020", "step_00000020.replaced", "step_00000005"));
  EXPECT_THAT(list_complete(folder_.path / "absent"), IsEmpty());
}

TEST_F(CheckpointFolderTest, RemovesWhatIsUnfinishedOnly) {
  for (const auto* name : {"step_00000005", "step_00000006.tmp-0a", "step_00000005.tmp-removed", "notes.tmp-1"})
    make(name);
  remove_unfinished(folder_.path);
  EXPECT_THAT(all(), UnorderedElementsAre("step_00000005", "notes.tmp-1"));
}

TEST_F(CheckpointFolderTest, PublishesOverAnEarlierCheckpointOfTheStep) {
  make("step_00000006", "old");
  const auto path = publish(make("step_00000006.tmp-1", "new"), 6);
  EXPECT_EQ(read_file(path / "manifest.json"), "new");
  EXPECT_THAT(complete(), ElementsAre("step_00000006", "step_00000006.replaced"));
  EXPECT_THAT(remove_old(folder_.path, 6, 2, {}), ElementsAre(folder_.path / "step_00000006.replaced"));
  EXPECT_THAT(all(), ElementsAre("step_00000006"));
}

TEST_F(CheckpointFolderTest, AFolderWithoutManifestIsNoReasonToGiveUpTheReplacedOne) {
  make("step_00000006.replaced", "old");
  std::filesystem::create_directories(folder_.path / "step_00000006");
  publish(make("step_00000006.tmp-1", "new"), 6);
  EXPECT_THAT(complete(), ElementsAre("step_00000006", "step_00000006.replaced"));
}

TEST_F(CheckpointFolderTest, KeepsTheNewestCompleteOnes) {
  for (const auto* name : {"step_00000002", "step_00000004", "step_00000006", "step_00000008"}) make(name);
  EXPECT_THAT(remove_old(folder_.path, 8, 2, {}),
              ElementsAre(folder_.path / "step_00000004", folder_.path / "step_00000002"));
  EXPECT_THAT(complete(), ElementsAre("step_00000008", "step_00000006"));
}

// Damaged ones must not displace whole ones, and what a run left at later steps is not this one's to remove or count.
TEST_F(CheckpointFolderTest, DamagedAndLaterOnesDoNotCount) {
  for (const auto* name : {"step_00000002", "step_00000004", "step_00000006", "step_00000008", "step_00000010"})
    make(name);
  remove_old(folder_.path, 8, 2, {folder_.path / "step_00000006"});
  EXPECT_THAT(complete(), ElementsAre("step_00000010", "step_00000008", "step_00000004"));
  remove_old(folder_.path, 8, 1, {folder_.path / "step_00000010"});
  EXPECT_THAT(complete(), ElementsAre("step_00000008"));
}

}  // namespace
}  // namespace assay
