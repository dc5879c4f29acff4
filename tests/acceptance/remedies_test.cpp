#include "harness/acceptance/remedies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace assay {
namespace {

using testing::ElementsAre;

Recipe plan() {
  Recipe recipe;
  recipe.mode = Mode::full;
  recipe.device = DeviceChoice::cuda;
  recipe.model.attention = AttentionChoice::efficient;
  recipe.data.sequence_length = 2048;
  recipe.train.micro_batch_size = 4;
  recipe.train.gradient_accumulation_steps = 3;
  recipe.train.precision = Precision::bf16;
  recipe.parallel.nproc_per_node = 256;
  recipe.parallel.strategy = StrategyName::ddp;
  return recipe;
}

std::vector<std::string> changes_of(const std::vector<Remedy>& remedies) {
  std::vector<std::string> changes;
  for (const auto& remedy : remedies) changes.push_back(remedy.change);
  return changes;
}

// Requirements, rows 1.4 and 2.3: batch, length, checkpointing, attention, LoRA, QLoRA, more cards.
TEST(Remedies, ComeInTheOrderOfTheGuides) {
  EXPECT_THAT(
      changes_of(possible_remedies(plan())),
      ElementsAre("train.micro_batch_size=2 train.gradient_accumulation_steps=6",
                  "train.micro_batch_size=1 train.gradient_accumulation_steps=12", "data.sequence_length=1024",
                  "data.sequence_length=512", "train.activation_checkpointing=selective",
                  "train.activation_checkpointing=full", "model.attention=flash", "mode=lora",
                  "mode=qlora quantization.type=nf4", "parallel.nproc_per_node=256 parallel.strategy=fsdp",
                  "parallel.nproc_per_node=512 parallel.strategy=fsdp",
                  "parallel.nproc_per_node=1024 parallel.strategy=fsdp",
                  "train.micro_batch_size=1 train.gradient_accumulation_steps=12 train.activation_checkpointing=full"));
  EXPECT_THAT(changes_of(last_remedies(plan())),
              ElementsAre("parallel.nproc_per_node=256 parallel.strategy=fsdp train.micro_batch_size=1 "
                          "train.gradient_accumulation_steps=12 train.activation_checkpointing=full",
                          "parallel.nproc_per_node=512 parallel.strategy=fsdp train.micro_batch_size=1 "
                          "train.gradient_accumulation_steps=12 train.activation_checkpointing=full",
                          "parallel.nproc_per_node=1024 parallel.strategy=fsdp train.micro_batch_size=1 "
                          "train.gradient_accumulation_steps=12 train.activation_checkpointing=full"));
}

// The tokens of a step stay with a smaller batch; of the key that is changed nothing else moves.
TEST(Remedies, ChangeOneThing) {
  const auto remedies = possible_remedies(plan());
  for (const auto& remedy : remedies) {
    SCOPED_TRACE(remedy.change);
    EXPECT_FALSE(remedy.cost.empty());
    EXPECT_EQ(remedy.by_formula, remedy.change.starts_with("mode="));
    const auto& train = remedy.recipe.train;
    EXPECT_EQ(train.micro_batch_size * train.gradient_accumulation_steps, 12);
  }
  EXPECT_EQ(remedies[6].recipe.model.attention, AttentionChoice::flash);
  EXPECT_EQ(remedies[8].recipe.quantization.type, QuantizationType::nf4);
  EXPECT_EQ(remedies[10].recipe.parallel.nproc_per_node, 512);
  EXPECT_EQ(remedies[10].recipe.train.global_batch_size, 512 * 12);
}

TEST(Remedies, WhatIsAlreadySoIsNotProposed) {
  Recipe recipe = plan();
  recipe.mode = Mode::pretrain;
  recipe.device = DeviceChoice::cpu;
  recipe.model.attention = AttentionChoice::flash;
  recipe.data.sequence_length = 512;
  recipe.train.micro_batch_size = 1;
  recipe.train.activation_checkpointing = ActivationCheckpointing::full;
  recipe.parallel.nproc_per_node = 512;
  recipe.parallel.strategy = StrategyName::fsdp;
  EXPECT_THAT(changes_of(possible_remedies(recipe)),
              ElementsAre("parallel.nproc_per_node=1024 parallel.strategy=fsdp"));
  EXPECT_TRUE(last_remedies(recipe).empty());
  recipe.parallel.nproc_per_node = 65536;
  EXPECT_TRUE(possible_remedies(recipe).empty());
}

TEST(Remedies, TheNearestIsTheFirstThatFits) {
  const Json rows = {
      {{"change", "a=1"}, {"peak_bytes", 2048}, {"fits", false}, {"by", "dry run"}},
      {{"change", "mode=lora"}, {"peak_bytes", 512}, {"fits", true}, {"by", "formula"}},  // another training
      {{"change", "b=2"}, {"peak_bytes", 1024}, {"fits", true}, {"by", "dry run"}}};
  EXPECT_EQ(nearest_remedy({{"remedies", rows}}), "b=2 (1.00 KiB by dry run)");
  EXPECT_EQ(nearest_remedy({{"remedies", Json::array({rows[0]})}}), "");
  EXPECT_EQ(nearest_remedy(Json::object()), "");
}

}  // namespace
}  // namespace assay
