#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/recipe/recipe_file.h"

namespace assay {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::vector<std::string> said(const std::vector<std::string>& words, const ResolveFacts& facts = {}) {
  return RecipeFile(kSmall).mistakes(words, facts);
}

std::vector<std::string> warned(const std::vector<std::string>& words) {
  return RecipeFile(kSmall).load(words).warnings;
}

TEST(Rules, WhatIsOpenIsResolved) {
  const RecipeFile file("model: {path: m}\ndata: {path: a.txt}\ntokenizer: {path: bytes}\n", "mine.yaml");
  const auto one = file.load();
  EXPECT_EQ(one.recipe.name, "mine");
  EXPECT_EQ(one.recipe.model.init, ModelInit::random);
  EXPECT_EQ(one.recipe.model.attention, AttentionChoice::flash);
  EXPECT_EQ(one.recipe.data.format, DataFormat::text);
  EXPECT_EQ(one.recipe.parallel.strategy, StrategyName::none);
  EXPECT_EQ(one.recipe.parallel.backend, BackendChoice::gloo);
  EXPECT_EQ(one.recipe.accept.limits, "recipes/limits/cpu.yaml");
  EXPECT_EQ(one.recipe.train.global_batch_size, 2 * 2 * 1);
  EXPECT_EQ(one.origins.at("model.path"), file.path.string() + ":1");
  EXPECT_EQ(one.origins.at("seed"), "default");
  EXPECT_EQ(one.origins.at("parallel.strategy"), "resolved");

  const auto two = file.load({"parallel.nproc_per_node=2", "mode=full", "device=auto"});
  EXPECT_EQ(two.recipe.parallel.strategy, StrategyName::ddp);
  EXPECT_EQ(two.recipe.model.init, ModelInit::load);
  EXPECT_EQ(two.recipe.device, DeviceChoice::cpu);
  EXPECT_EQ(two.recipe.train.global_batch_size, 2 * 2 * 2);
  EXPECT_EQ(two.origins.at("parallel.nproc_per_node"), "command line");
  EXPECT_EQ(two.origins.at("device"), "command line, resolved");

  ResolveFacts four;
  four.world_size = 4;
  EXPECT_EQ(file.load({}, four).recipe.train.global_batch_size, 2 * 2 * 4);
}

TEST(Rules, FormatComesFromTheName) {
  EXPECT_EQ(RecipeFile("model: {path: m}\ndata: {path: a.safetensors}\n").load().recipe.data.format,
            DataFormat::batches);
  EXPECT_THAT(RecipeFile("model: {path: m}\ndata: {path: a.bin}\n").mistakes(),
              ElementsAre(HasSubstr("llmc, nanogpt or llmq")));
  EXPECT_THAT(
      RecipeFile("model: {path: m}\ndata: {path: [a.txt, b.safetensors]}\ntokenizer: {path: bytes}\n").mistakes(),
      ElementsAre(HasSubstr("several formats")));
}

TEST(Rules, RequiredKeys) {
  EXPECT_THAT(RecipeFile("seed: 1\n").mistakes(), ElementsAre(StartsWith("r.yaml:1:1: model.path: is missing"),
                                                              StartsWith("r.yaml:1:1: data.path: is missing")));
  EXPECT_THAT(RecipeFile("model: {path: m}\ndata: {path: a}\n").mistakes(),
              ElementsAre(HasSubstr("tokenizer.path: is missing")));
  EXPECT_THAT(said({"train.eval_interval=5"}), ElementsAre(HasSubstr("data.eval_path: is missing")));
}

TEST(Rules, HeldOutDataIsText) {
  EXPECT_THAT(said({"train.eval_interval=5", "data.eval_path=a"}),
              ElementsAre(HasSubstr("data.eval_path: is read as text, and data.format is synthetic")));
  EXPECT_THAT(said({"train.eval_interval=5", "data.eval_path=a", "data.path=b.safetensors", "data.format=auto"}),
              ElementsAre(HasSubstr("data.format is batches")));
}

// B12: a global batch that is not the product is refused with the arithmetic.
TEST(Rules, AGlobalBatchMustBeTheProduct) {
  EXPECT_THAT(
      said({"train.global_batch_size=10", "train.gradient_accumulation_steps=2", "parallel.nproc_per_node=3"}),
      ElementsAre("command line: train.global_batch_size: 10 is not micro_batch_size 2 x gradient_accumulation_steps 2 "
                  "x ranks 3 = 12"));
  EXPECT_THAT(said({"train.global_batch_size=7", "train.gradient_accumulation_steps=1"}),
              ElementsAre(HasSubstr("7 is not micro_batch_size 2 x gradient_accumulation_steps 1 x ranks 1 = 2")));
  EXPECT_THAT(said({"train.global_batch_size=12", "parallel.nproc_per_node=3"}), IsEmpty());
}

// K05: a warm-up that the run does not leave is told.
TEST(Rules, AWarmupAsLongAsTheRunIsWarnedOf) {
  for (const char* steps : {"10", "11"}) {
    EXPECT_THAT(warned({"train.max_steps=10", std::string("schedule.warmup_steps=") + steps}),
                ElementsAre(HasSubstr("ends inside its warm-up")));
  }
  for (const char* steps : {"0", "9"}) {
    EXPECT_THAT(warned({"train.max_steps=10", std::string("schedule.warmup_steps=") + steps}), IsEmpty());
  }
  EXPECT_THAT(warned({"train.max_steps=1", "schedule.warmup_steps=0", "schedule.min_lr_ratio=0"}), IsEmpty());
}

TEST(Rules, KeysThatAreNotUsedAreWarnedOf) {
  EXPECT_THAT(warned({"data.path=a"}), ElementsAre(HasSubstr("data.path is not used")));
  EXPECT_THAT(warned({"tokenizer.path=bytes"}), ElementsAre(HasSubstr("tokenizer.path is not used")));
  EXPECT_THAT(warned({"data.eval_path=a"}), ElementsAre(HasSubstr("data.eval_path is not used")));
}

TEST(Rules, SeveralRanksNeedAStrategy) {
  EXPECT_THAT(said({"parallel.nproc_per_node=2", "parallel.strategy=none"}),
              ElementsAre(HasSubstr("none with 2 ranks")));
  EXPECT_THAT(said({"parallel.strategy=none"}), IsEmpty());
}

TEST(Rules, ShardingAndPrecisionFitTogether) {
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
    const std::string word = std::string("parallel.strategy=") + strategy;
    EXPECT_THAT(said({word}), IsEmpty());
    EXPECT_THAT(said({word, "parallel.nproc_per_node=3"}), IsEmpty());
  }
  EXPECT_THAT(said({"parallel.units_in_flight=0"}),
              ElementsAre(HasSubstr("parallel.units_in_flight: 0 is out of range")));
  EXPECT_THAT(said({"optimizer.moment_dtype=bf16"}),
              ElementsAre(HasSubstr("optimizer.moment_dtype: bf16 with train.precision fp32")));
  EXPECT_THAT(said({"optimizer.moment_dtype=bf16", "train.precision=bf16"}), IsEmpty());
  EXPECT_THAT(said({"train.precision=fp16", "train.loss_scale.initial=1", "train.loss_scale.minimum=2"}),
              ElementsAre(HasSubstr("train.loss_scale.initial: 1 is below train.loss_scale.minimum 2")));
  EXPECT_THAT(warned({"train.loss_scale.initial=2"}), ElementsAre(HasSubstr("train.loss_scale is not used")));
  EXPECT_THAT(warned({"train.loss_scale.initial=2", "train.precision=fp16"}), IsEmpty());
}

// C13: what the moments are kept in is a key of its own, and the resolved recipe says it.
TEST(Rules, MomentsAreFp32UnlessEverythingIsBf16) {
  const RecipeFile file("model: {path: m}\ndata: {format: synthetic}\n");
  using Words = std::vector<std::string>;
  for (const auto& [words, dtype] :
       {std::pair{Words{}, FloatType::fp32},
        {Words{"train.precision=bf16"}, FloatType::fp32},
        {Words{"train.precision=fp16"}, FloatType::fp32},
        {Words{"train.precision=pure_bf16"}, FloatType::bf16},
        {Words{"train.precision=pure_bf16", "optimizer.moment_dtype=fp32"}, FloatType::fp32}}) {
    EXPECT_EQ(file.load(words).recipe.optimizer.moment_dtype, dtype);
  }
}

TEST(Rules, OneCheckpointIsTooFew) {
  EXPECT_THAT(said({"checkpoint.keep_latest=1"}),
              ElementsAre(HasSubstr("allowed: 2 to 1000000 (the newest may be damaged")));
}

TEST(Rules, ATimeOutInWhichNothingCanBeDoneIsRefused) {
  for (const char* seconds : {"0", "0.001", "0.999", "-1"}) {
    EXPECT_THAT(said({"parallel.timeout_seconds=" + std::string(seconds)}),
                ElementsAre("command line: parallel.timeout_seconds: " + std::string(seconds) +
                            " is out of range, allowed: 1 to 1000000"));
  }
  EXPECT_THAT(said({"parallel.timeout_seconds=1"}), IsEmpty());
}

TEST(Rules, ModesAndQuantizationFitTogether) {
  EXPECT_THAT(said({"mode=full", "quantization.type=nf4"}), ElementsAre(HasSubstr("mode full trains all weights")));
  EXPECT_THAT(said({"quantization.type=nf4"}), ElementsAre(HasSubstr("mode pretrain trains all weights")));
  EXPECT_THAT(said({"mode=qlora"}), Contains(HasSubstr("mode qlora needs quantization type nf4")));
  EXPECT_THAT(said({"mode=lora", "quantization.type=nf4"}), Contains(HasSubstr("is called mode qlora")));
}

TEST(Rules, StagesAndNames) {
  EXPECT_THAT(said({"accept.stages=[trian]"}), ElementsAre(HasSubstr("unknown stage trian; did you mean train?")));
  EXPECT_THAT(said({"accept.stages=[train, train]"}), ElementsAre(HasSubstr("named twice")));
  EXPECT_THAT(said({"accept.stages=[]"}), ElementsAre(HasSubstr("the list is empty")));
  EXPECT_THAT(said({"allocator.roundup_power2_divisions=3"}), ElementsAre(HasSubstr("3 is no power of two")));
  EXPECT_THAT(said({"name=../x"}), ElementsAre(HasSubstr("part of the run folder's name")));
}

TEST(Rules, PartsThatAreNotBuiltAreRefused) {
  for (const char* word :
       {"mode=lora", "mode=inference", "device=cuda", "model.attention=math", "data.format=jsonl", "data.packing=false",
        "tokenizer.path=some/folder", "optimizer.name=sgd", "parallel.backend=nccl", "parallel.cpu_binding=none",
        "checkpoint.minutes=5", "checkpoint.keep_best=true", "checkpoint.async=true", "checkpoint.path=x", "lora.r=16",
        "plan.tokens=1e9", "inference.batch_size=2", "train.epochs=2", "accept.stages=[train, drill]"}) {
    const auto lines = said({word, "data.path=a.txt"});
    EXPECT_THAT(lines, Contains(HasSubstr("not supported by this version"))) << word;
  }
  EXPECT_THAT(said({"data.path=[{path: a.txt, weight: 2}, b.txt]"}),
              ElementsAre(HasSubstr("a weight other than 1 is not supported by this version")));
  EXPECT_THAT(said({"data.format=batches", "data.path=[a.safetensors, b.safetensors]"}),
              ElementsAre(HasSubstr("a second file of batches is not supported by this version")));
  EXPECT_THAT(said({"data.path=[{path: a.txt, weight: 1}, b.txt]"}), IsEmpty());
  EXPECT_THAT(said({"optimizer.name=sgd"}),
              ElementsAre("command line: optimizer.name: sgd is not supported by this version (supported: adamw)"));
  EXPECT_THAT(said({"lora.r=8", "plan.runs=1", "lora.target_modules=[q_proj, v_proj]"}), IsEmpty());
  for (const char* word : {"schedule.name=wsd", "data.shuffle=false", "model.init=load", "model.attention=flash",
                           "mode=full", "allocator.max_split_size=64MiB", "allocator.roundup_power2_divisions=4"}) {
    EXPECT_THAT(said({word}), IsEmpty()) << word;
  }
  ResolveFacts gpu;
  gpu.cuda_available = true;
  EXPECT_THAT(said({"device=auto"}, gpu), ElementsAre(HasSubstr("device: cuda is not supported")));
}

// What only plans needs no device: the key names the target.
TEST(Rules, ACudaDeviceCanBePlannedForWithoutOne) {
  ResolveFacts plan;
  plan.runs = false;
  EXPECT_THAT(said({"device=cuda"}, plan), IsEmpty());
  EXPECT_THAT(said({"device=cuda", "parallel.backend=nccl"}, plan), IsEmpty());
  EXPECT_EQ(RecipeFile(kSmall).load({"device=cuda"}, plan).recipe.parallel.backend, BackendChoice::nccl);
  EXPECT_EQ(RecipeFile(kSmall).load({"device=auto"}, plan).recipe.device, DeviceChoice::cpu);
  EXPECT_THAT(said({"optimizer.name=sgd"}, plan), ElementsAre(HasSubstr("not supported by this version")));
  plan.cuda_available = true;
  EXPECT_EQ(RecipeFile(kSmall).load({"device=auto"}, plan).recipe.device, DeviceChoice::cuda);
}

TEST(Rules, AttentionIsTheFirstThatTheDeviceHasForThePrecision) {
  ResolveFacts plan;
  plan.runs = false;
  const auto used = [&](const std::vector<std::string>& words) {
    return RecipeFile(kSmall).load(words, plan).recipe.model.attention;
  };
  EXPECT_EQ(used({"device=cpu"}), AttentionChoice::flash);
  EXPECT_EQ(used({"device=cuda"}), AttentionChoice::efficient);
  EXPECT_EQ(used({"device=cuda", "train.precision=bf16"}), AttentionChoice::flash);
  EXPECT_EQ(used({"device=cuda", "train.precision=bf16", "model.attention=efficient"}), AttentionChoice::efficient);
  EXPECT_THAT(said({"device=cuda", "model.attention=flash"}, plan), ElementsAre(HasSubstr("flash has no fp32 kernel")));
  EXPECT_THAT(said({"model.attention=efficient"}), ElementsAre(HasSubstr("efficient has no kernel on cpu")));
}

TEST(Rules, AMistakeInOneKeyBringsNoOtherAboutIt) {
  EXPECT_THAT(said({"train.micro_batch_size=x", "train.global_batch_size=3"}),
              ElementsAre(HasSubstr("train.micro_batch_size: x")));
  EXPECT_THAT(RecipeFile("model: {path: m}\ndata: {path: a}\ntokenizer: bytes\n").mistakes(),
              ElementsAre("r.yaml:3:12: tokenizer: bytes is given, expected is a section: tokenizer: {path: ...}"));
}

TEST(Rules, AResolvedRecipeIsChangedUnderTheSameRules) {
  Recipe recipe = RecipeFile(kSmall).load({"parallel.nproc_per_node=2"}).recipe;
  EXPECT_EQ(with_overrides(recipe, {}), recipe);
  try {
    with_overrides(recipe, {"train.micro_batch_size=3", "data.sequence_length=1"});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_THAT(error.what(), HasSubstr("command line: data.sequence_length: 1"));
  }
  EXPECT_THROW(with_overrides(recipe, {"train.micro_batch_size=3"}), Error);  // not the global batch that was resolved
  recipe.train.global_batch_size.reset();
  const auto changed = with_overrides(recipe, {"train.micro_batch_size=3", "model.config.num_hidden_layers=7"});
  EXPECT_EQ(changed.train.global_batch_size, 3 * recipe.train.gradient_accumulation_steps * 2);
  EXPECT_EQ(changed.model.config, R"({"num_hidden_layers":7})");
}

}  // namespace
}  // namespace assay
