#include "checkpoint/show.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/safetensors_writer.h"
#include "tests/checkpoint/checkpoint_files.h"
#include "tests/checkpoint/rank_state.h"
#include "tests/checkpoint/thread_group.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::filesystem::path kData = std::filesystem::path(ASSAY_SOURCE_DIR) / "tests/data/safetensors";

TEST(Show, ListsASafetensorsFile) {
  const auto listing = show(kData / "valid/strange_names.safetensors");
  EXPECT_EQ(listing.json["kind"], "safetensors");
  EXPECT_EQ(listing.json["num_tensors"], 5);
  EXPECT_EQ(listing.json["num_elements"], 6);
  EXPECT_EQ(listing.json["tensor_bytes"], 24);
  EXPECT_THAT(listing.text,
              AllOf(HasSubstr("a.b/c d"), HasSubstr(R"("tab\tnew\nline")"), HasSubstr(R"("quote\"back\\slash")"),
                    HasSubstr("5 tensors, 6 elements, 24 bytes"), Not(HasSubstr("tab\tnew"))));
  // Columns are aligned by characters, not bytes.
  EXPECT_THAT(listing.text,
              HasSubstr("\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87.\xe9\x87\x8d\xe3\x81\xbf               F32    [1]    4\n"));
  const auto one = show(kData / "valid/one_tensor.safetensors");
  EXPECT_EQ(one.json["tensors"],
            Json::array({Json{{"name", "weight"}, {"dtype", "F32"}, {"shape", {3, 4}}, {"bytes", 48}}}));
  EXPECT_EQ(one.json["metadata"]["format"], "pt");
}

// Every file of the official library's table: shown if it accepts, refused with exit code 2 if not.
TEST(Show, AcceptsAndRefusesFilesAsTheTable) {
  const auto table = parse_json(read_file(kData / "table.json"), "table.json");
  int refused = 0;
  for (const auto& [name, verdicts] : table.items()) {
    if (verdicts["safe_open"]["result"] == "accept" && name.starts_with("valid")) {
      EXPECT_EQ(show(kData / name).json["num_tensors"], verdicts["safe_open"]["tensors"].size()) << name;
    } else if (verdicts["safe_open"]["result"] == "reject") {
      EXPECT_THAT(error_of([&] { show(kData / name); }), StartsWith("data: ")) << name;
      ++refused;
    }
  }
  EXPECT_EQ(refused, 76);
}

TEST(Show, ListsAModelFolder) {
  const TemporaryFolder folder;
  const float value = 1;
  write_safetensors(folder.path / "model.safetensors", {{"a", "F32", {1}, &value, 4}}, {});
  write_file(folder.path / "old.safetensors", "left over");
  const auto listing = show(folder.path);
  EXPECT_EQ(listing.json["kind"], "model folder");
  EXPECT_EQ(listing.json["files"][0]["tensors"][0]["name"], "a");
  EXPECT_EQ(listing.json["ignored"], Json::array({"old.safetensors"}));
}

TEST(Show, VerifiesEveryChecksumOfACheckpoint) {
  const TemporaryFolder folder;
  ASSERT_THAT(run_ranks(2,
                        [&](RankGroup& group) {
                          Checkpointer checkpointer(folder.path, 1, group);
                          save_step(checkpointer, group, 7);
                        }),
              Each(""));
  const auto path = folder.path / "step_00000007";
  const auto listing = show(path);
  EXPECT_EQ(listing.json["kind"], "checkpoint");
  EXPECT_EQ(listing.json["step"], 7);
  EXPECT_EQ(listing.json["files"].size(), 2U);
  EXPECT_EQ(listing.json["num_tensors"], 6);
  EXPECT_EQ(listing.json["tensor_bytes"], 2 * (4000 + 1000 + 8));
  EXPECT_THAT(listing.text, HasSubstr("rank_00001.safetensors"));
  EXPECT_EQ(show(path / "manifest.json").json["files"][1]["name"], "rank_00001.safetensors");

  auto bytes = read_file(path / "rank_00001.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path / "rank_00001.safetensors", bytes);
  EXPECT_THAT(error_of([&] { show(path); }),
              AllOf(StartsWith("data: "), HasSubstr("rank_00001.safetensors"), HasSubstr("checksum")));
}

TEST(Show, NamesAPathThatIsNotThere) {
  EXPECT_THAT(error_of([] { show("/nowhere/at/all"); }), "data: there is no file or folder /nowhere/at/all");
}

}  // namespace
}  // namespace assay
