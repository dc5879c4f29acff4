#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/checkpoint_files.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Manifest example() {
  const std::string sum(32, 'a');
  return {10,
          2,
          {{"rank_00000.safetensors", 8'388'609, chunk_bytes, {sum, sum}},
           {"rank_00001.safetensors", 64, chunk_bytes, {sum}}},
          {Json{{"name", "tiny"}, {"train", {{"learning_rate", 3e-4}, {"big", 18446744073709551615U}}}}, "abc",
           Json{{"assay", "0.1.0"}}},
          "2026-11-30T20:45:18.123456Z"};
}

std::string error(const std::string& text) {
  return error_of([&] { parse_manifest(text, "manifest.json"); });
}

/// The manifest with one key changed and a right checksum again.
std::string changed(const std::function<void(Json&)>& change) {
  auto json = parse_json(manifest_text(example()), "manifest");
  json.erase("checksum");
  change(json);
  json["checksum"] = xxh3_of(dump_json(json));
  return dump_json_pretty(json);
}

TEST(Manifest, ReadsBackWhatWasWritten) {
  const auto read = parse_manifest(manifest_text(example()), "manifest.json");
  EXPECT_EQ(read.step, 10);
  EXPECT_EQ(read.world_size, 2);
  EXPECT_EQ(read.files[1].name, "rank_00001.safetensors");
  EXPECT_EQ(read.files[0].chunk_checksums.size(), 2U);
  EXPECT_EQ(read.run.recipe, example().run.recipe);
  EXPECT_EQ(read.run.recipe_hash, "abc");
  EXPECT_EQ(read.run.versions, example().run.versions);
  EXPECT_EQ(read.created, "2026-11-30T20:45:18.123456Z");
  EXPECT_EQ(read.size_bytes(), 8'388'673U);
  EXPECT_EQ(manifest_text(read), manifest_text(example()));
}

TEST(Manifest, RefusesANewerFormatByNumberAndKeepsKeysAddedLater) {
  EXPECT_THAT(error(changed([](Json& json) { json["format_version"] = 7; })),
              AllOf(StartsWith("usage: "), HasSubstr("format_version 7"), HasSubstr("reads up to 1")));
  EXPECT_EQ(error(changed([](Json& json) { json["comment"] = "later"; })), "");
}

TEST(Manifest, EveryCutIsRefused) {
  const auto text = manifest_text(example());
  for (std::size_t size = 0; size + 2 < text.size(); ++size) {
    ASSERT_THAT(error(text.substr(0, size)), StartsWith("data: manifest.json")) << size;
  }
}

// White space is the one thing that may change: it says nothing.
TEST(Manifest, EveryChangedCharacterIsRefused) {
  const auto text = manifest_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ' || text[i] == '\n') continue;
    auto damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    const auto message = error(damaged);
    // A changed version number may read as a newer format.
    ASSERT_TRUE(message.starts_with("data: ") || message.find("format_version") != std::string::npos)
        << i << ": " << text.substr(i, 20) << " " << message;
  }
}

TEST(Manifest, NamesTheKeyThatIsMissingOrWrong) {
  for (const auto* key :
       {"format_version", "step", "world_size", "files", "recipe", "recipe_hash", "versions", "created"}) {
    EXPECT_THAT(error(changed([&](Json& json) { json.erase(key); })), AllOf(StartsWith("data: "), HasSubstr(key)))
        << key;
    EXPECT_THAT(error(changed([&](Json& json) { json[key] = true; })), AllOf(StartsWith("data: "), HasSubstr(key)))
        << key;
  }
  const std::vector<std::pair<std::function<void(Json&)>, std::string>> mistakes{
      {[](Json& json) { json["step"] = -1; }, "\"step\" is -1"},
      {[](Json& json) { json["world_size"] = 0; }, "\"world_size\" is 0"},
      {[](Json& json) { json["world_size"] = 3; }, "2 files for world_size 3"},
      {[](Json& json) { json["files"][0]["name"] = "../rank_00000.safetensors"; }, "no plain file name"},
      {[](Json& json) { json["files"][0]["chunk_bytes"] = 0; }, "\"chunk_bytes\" is 0"},
      {[](Json& json) { json["files"][0]["size_bytes"] = 0; }, "\"size_bytes\" is 0"},
      {[](Json& json) { json["files"][0]["chunk_checksums"].erase(1); }, "no list of 2"},
      {[](Json& json) { json["files"][0]["chunk_checksums"][0] = 5; }, "no string"},
  };
  for (const auto& [change, reason] : mistakes) {
    EXPECT_THAT(error(changed(change)), AllOf(StartsWith("data: "), HasSubstr(reason)));
  }
}

}  // namespace
}  // namespace assay
