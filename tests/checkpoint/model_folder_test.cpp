#include "checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/safetensors_writer.h"
#include "harness/core/json.h"
#include "tests/checkpoint/checkpoint_files.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ModelFolderTest : public ::testing::Test {
 protected:
  /// A file whose tensors hold one float each: their name's value.
  void write_shard(const std::string& file, const std::map<std::string, float>& values) {
    std::vector<TensorBytes> tensors;
    for (const auto& [name, value] : values) tensors.push_back({name, "F32", {1}, &value, 4});
    write_safetensors(folder_.path / file, tensors, {{"format", "pt"}});
  }
  void write_index(const std::map<std::string, std::string>& weight_map) {
    write_file(folder_.path / "model.safetensors.index.json",
               dump_json({{"metadata", {{"total_size", 12}}}, {"weight_map", weight_map}}));
  }
  void write_three_shards() {
    write_shard("model-00001-of-00003.safetensors", {{"a", 1}});
    write_shard("model-00002-of-00003.safetensors", {{"b", 2}});
    write_shard("model-00003-of-00003.safetensors", {{"c", 3}});
    write_index({{"a", "model-00001-of-00003.safetensors"},
                 {"b", "model-00002-of-00003.safetensors"},
                 {"c", "model-00003-of-00003.safetensors"}});
  }
  std::string error() const {
    return error_of([&] { ModelFolder{folder_.path}; });
  }
  float value_of(const ModelFolder& model, const std::string& name) const {
    float value = 0;
    std::memcpy(&value, model.find(name).value().bytes.data(), 4);
    return value;
  }

  TemporaryFolder folder_;
};

TEST_F(ModelFolderTest, ReadsASingleFile) {
  write_shard("model.safetensors", {{"b", 2}, {"a", 1}});
  write_shard("optimizer.safetensors", {{"x", 9}});
  const ModelFolder model(folder_.path);
  EXPECT_THAT(model.names(), ElementsAre("a", "b"));
  EXPECT_EQ(value_of(model, "b"), 2);
  EXPECT_EQ(model.find("a")->file.filename(), "model.safetensors");
  EXPECT_FALSE(model.find("x"));
  EXPECT_THAT(model.ignored(), ElementsAre("optimizer.safetensors"));
}

TEST_F(ModelFolderTest, ReadsTheShardsOfTheIndexAndNoLeftOvers) {
  write_three_shards();
  // A smaller model is saved over it, in two shards; a single file is left from somewhere else.
  write_shard("model-00001-of-00002.safetensors", {{"a", 10}});
  write_shard("model-00002-of-00002.safetensors", {{"b", 20}});
  write_index({{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}});
  write_shard("model.safetensors", {{"a", -1}});
  const ModelFolder model(folder_.path);
  EXPECT_THAT(model.names(), ElementsAre("a", "b"));
  EXPECT_EQ(value_of(model, "a"), 10);
  EXPECT_EQ(value_of(model, "b"), 20);
  EXPECT_THAT(model.ignored(), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                           "model-00003-of-00003.safetensors", "model.safetensors"));
}

TEST_F(ModelFolderTest, RefusesMissingEmptyAndPointerShardsByNameAndAllAtOnce) {
  write_three_shards();
  std::filesystem::remove(folder_.path / "model-00001-of-00003.safetensors");
  write_file(folder_.path / "model-00002-of-00003.safetensors", "");
  write_file(folder_.path / "model-00003-of-00003.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  EXPECT_THAT(error(), AllOf(StartsWith("data: "), HasSubstr("model-00001-of-00003.safetensors"),
                             HasSubstr("model-00002-of-00003.safetensors is empty"),
                             HasSubstr("model-00003-of-00003.safetensors is a Git LFS pointer")));
}

TEST_F(ModelFolderTest, RefusesAKeyThatIsNotInItsShard) {
  write_three_shards();
  write_shard("model-00002-of-00003.safetensors", {});
  EXPECT_THAT(error(),
              AllOf(StartsWith("data: "), HasSubstr("puts tensor \"b\" into model-00002-of-00003.safetensors")));
}

TEST_F(ModelFolderTest, RefusesAKeyInTwoShards) {
  write_three_shards();
  write_shard("model-00002-of-00003.safetensors", {{"a", 5}, {"b", 2}});
  EXPECT_THAT(error(),
              AllOf(StartsWith("data: "), HasSubstr("model-00002-of-00003.safetensors holds tensor \"a\", which the "
                                                    "index puts into model-00001-of-00003.safetensors")));
}

TEST_F(ModelFolderTest, RefusesATensorThatTheIndexDoesNotName) {
  write_three_shards();
  write_shard("model-00003-of-00003.safetensors", {{"c", 3}, {"d", 4}});
  EXPECT_THAT(error(), HasSubstr("holds tensor \"d\", which the index does not name"));
}

TEST_F(ModelFolderTest, RefusesAnIndexThatPointsOutsideOrIsNoIndex) {
  write_three_shards();
  for (const auto* file : {"../model.safetensors", "/etc/model.safetensors", "..", "", "pytorch_model.bin"}) {
    write_index({{"a", file}});
    EXPECT_THAT(error(), AllOf(StartsWith("data: "), HasSubstr("tensor \"a\""))) << file;
  }
  for (const auto* text :
       {"", "{}", "[]", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":"b")",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    write_file(folder_.path / "model.safetensors.index.json", text);
    EXPECT_THAT(error(), AllOf(StartsWith("data: "), HasSubstr("model.safetensors.index.json"))) << text;
  }
  write_file(folder_.path / "model.safetensors.index.json",
             "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n");
  EXPECT_THAT(error(), HasSubstr("is a Git LFS pointer"));
}

TEST_F(ModelFolderTest, SaysWhatIsThereInsteadOfSafetensors) {
  EXPECT_THAT(error(),
              AllOf(StartsWith("data: "), HasSubstr("neither model.safetensors nor"), Not(HasSubstr("found"))));
  write_file(folder_.path / "pytorch_model.bin", "x");
  EXPECT_THAT(error(), HasSubstr("found pytorch_model.bin"));
  EXPECT_THAT(error_of([&] { ModelFolder{folder_.path / "absent"}; }), StartsWith("data: there is no model folder"));
}

}  // namespace
}  // namespace assay
