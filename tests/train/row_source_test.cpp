#include "harness/train/row_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "checkpoint/safetensors.h"
#include "harness/core/error.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

std::vector<std::int64_t> bytes_of(const std::string& text) {
  std::vector<std::int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(ByteRows, CutTheTextWithoutOverlapAcrossFiles) {
  const TemporaryFolder folder;
  write(folder.path / "a.txt", "abcde");
  write(folder.path / "b.txt", "");
  write(folder.path / "c.txt", "fgh\xff");
  const auto rows = make_byte_rows({folder.path / "a.txt", folder.path / "b.txt", folder.path / "c.txt"}, 4, false, 1);
  EXPECT_EQ(rows->epoch_samples(), 2);
  EXPECT_EQ(rows->row(0).input_ids, bytes_of("abcd"));
  EXPECT_EQ(rows->row(1).input_ids, bytes_of("efgh"));
  EXPECT_EQ(rows->row(2).input_ids, bytes_of("abcd"));  // the next epoch
  EXPECT_EQ(rows->row(0).labels, rows->row(0).input_ids);
  EXPECT_EQ(rows->num_trained_tokens(0), 3);
}

TEST(ByteRows, AFolderIsItsTextFilesSorted) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path / "data" / "z");
  write(folder.path / "data" / "z" / "b.md", "cd");
  write(folder.path / "data" / "a.txt", "ab");
  write(folder.path / "data" / "image.png", "xx");
  EXPECT_EQ(make_byte_rows({folder.path / "data"}, 4, false, 1)->row(0).input_ids, bytes_of("abcd"));
}

TEST(ByteRows, MissingAndTooShortTextsAreRefused) {
  const TemporaryFolder folder;
  write(folder.path / "short.txt", "abc");
  EXPECT_THROW(make_byte_rows({folder.path / "short.txt"}, 4, false, 1), Error);
  EXPECT_THROW(make_byte_rows({folder.path / "none.txt"}, 4, false, 1), Error);
}

TEST(ByteRows, ErrorsNameTheKeyOfThePath) {
  const TemporaryFolder folder;
  write(folder.path / "short.txt", "abc");
  std::filesystem::create_directories(folder.path / "empty");
  std::filesystem::create_symlink(folder.path / "loop", folder.path / "loop");
  for (const char* name : {"short.txt", "none.txt", "empty", "loop"}) {
    Recipe recipe;
    recipe.data.format = DataFormat::text;
    recipe.data.path = {{(folder.path / name).string(), 1}};
    recipe.data.eval_path = (folder.path / name).string();
    EXPECT_EQ(make_eval_source(recipe, 256), nullptr) << "train.eval_interval is 0";
    recipe.train.eval_interval = 5;
    const auto said = [&](auto make) {
      try {
        make();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::data);
        return std::string(error.what());
      }
      return std::string("nothing");
    };
    const auto in_training = said([&] { make_row_source(recipe, 1, 256); });
    EXPECT_THAT(in_training, testing::AllOf(testing::StartsWith("data.path"), testing::HasSubstr(name)));
    const auto in_evaluation = said([&] { make_eval_source(recipe, 256); });
    EXPECT_THAT(in_evaluation, testing::AllOf(testing::StartsWith("data.eval_path"), testing::HasSubstr(name)));
  }
}

// A05, A07: each epoch is a permutation of its own, a function of seed and epoch alone.
TEST(ByteRows, EveryRowOncePerEpochInAnOrderOfItsOwn) {
  const auto first = epoch_order(40, 42, 0);
  for (const std::int64_t epoch : {0, 1, 2}) {
    const auto order = epoch_order(40, 42, epoch);
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 40U);
    EXPECT_EQ(*std::max_element(order.begin(), order.end()), 39);
    EXPECT_EQ(order, epoch_order(40, 42, epoch));
    if (epoch > 0) {
      EXPECT_NE(order, first);
    }
  }
  EXPECT_NE(epoch_order(40, 43, 0), first);
}

TEST(ByteRows, ARowDoesNotDependOnWhatWasReadBefore) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 64; ++i) text += static_cast<char>('0' + i);
  write(folder.path / "a.txt", text);
  const auto one = make_byte_rows({folder.path / "a.txt"}, 4, true, 7);
  const auto other = make_byte_rows({folder.path / "a.txt"}, 4, true, 7);
  for (std::int64_t sample = 0; sample < 48; ++sample) one->row(sample);
  for (const std::int64_t sample : {47, 3, 20, 16, 15})
    EXPECT_EQ(one->row(sample).input_ids, other->row(sample).input_ids);
}

Recipe batches_recipe() {
  Recipe recipe;
  recipe.data.sequence_length = 24;
  recipe.train.micro_batch_size = 2;
  recipe.train.gradient_accumulation_steps = 4;
  recipe.train.max_steps = 20;
  return recipe;
}

TEST(BatchRows, KeepTheOrderOfStepMicroStepAndRow) {
  const auto path = std::filesystem::path(ASSAY_SOURCE_DIR) / "tests/data/train/llama20/batches.safetensors";
  const auto rows = make_batch_rows(path, batches_recipe(), 1);
  EXPECT_EQ(rows->num_samples(), 20 * 4 * 2);
  std::int64_t trained = 0;
  for (std::int64_t sample = 0; sample < 8; ++sample) trained += rows->num_trained_tokens(sample);
  EXPECT_EQ(trained, 104);  // counted_tokens of step 0 in steps.json
  const SafetensorsFile file(path);
  const auto bytes = file.bytes(*file.find("input_ids"));
  for (const std::int64_t sample : {0, 1, 2, 9, 159}) {
    std::vector<std::int64_t> expected(24);
    std::memcpy(expected.data(), bytes.data() + sample * 24 * 8, 24 * 8);  // [step, micro-step, row] is row-major
    EXPECT_EQ(rows->row(sample).input_ids, expected) << sample;
  }
  EXPECT_THROW(rows->row(160), Error);
}

std::string message_of(const std::filesystem::path& path, const Recipe& recipe, int world_size) {
  try {
    make_batch_rows(path, recipe, world_size);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "no error";
}

TEST(BatchRows, AnotherShapeThanTheRecipeIsRefusedWithTheNumbers) {
  const auto path = std::filesystem::path(ASSAY_SOURCE_DIR) / "tests/data/train/llama20/batches.safetensors";
  auto recipe = batches_recipe();
  recipe.train.max_steps = 21;
  EXPECT_THAT(message_of(path, recipe, 1), ::testing::HasSubstr("at least 21 steps"));
  EXPECT_THAT(message_of(path, batches_recipe(), 2), ::testing::HasSubstr("[4, 4, 24]"));
  recipe = batches_recipe();
  recipe.data.sequence_length = 23;
  EXPECT_THAT(message_of(path, recipe, 1), ::testing::HasSubstr("[4, 2, 23]"));
}

}  // namespace
}  // namespace assay
