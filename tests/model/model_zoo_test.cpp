#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "model/model_config.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

std::filesystem::path zoo_folder(const std::string& name) {
  return std::filesystem::path(ASSAY_SOURCE_DIR) / "recipes/models" / name;
}

std::string refusal(const std::string& name, const std::string& overrides) {
  try {
    load_model_config(zoo_folder(name), overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe) << error.what();
    return error.what();
  }
  ADD_FAILURE() << name << " was accepted with " << overrides;
  return "";
}

// Elements in the published safetensors files (model cards, "model size"), a tied head counted once.
TEST(ModelZoo, ParameterCountsAreThePublishedOnes) {
  const std::pair<const char*, std::int64_t> published[] = {
      {"llama-2-7b", 6'738'415'616},   {"llama-2-13b", 13'015'864'320}, {"llama-2-70b", 68'976'648'192},
      {"llama-3-8b", 8'030'261'248},   {"llama-3-70b", 70'553'706'496}, {"llama-3-405b", 405'853'388'800},
      {"llama-3.2-1b", 1'235'814'400}, {"llama-3.2-3b", 3'212'749'824}, {"mistral-7b", 7'241'732'096},
      {"gpt2-124m", 124'439'808},      {"gpt2-355m", 354'823'168},      {"gpt2-774m", 774'030'080},
      {"gpt2-1.5b", 1'557'611'200},    {"qwen2.5-0.5b", 494'032'768},   {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},   {"qwen2.5-7b", 7'615'616'512},   {"qwen2.5-14b", 14'770'033'664},
      {"qwen2.5-32b", 32'763'876'352}, {"qwen2.5-72b", 72'706'203'648}, {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},   {"qwen3-4b", 4'022'468'096},     {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},   {"qwen3-32b", 32'762'123'264}};
  std::size_t models = 1;  // tiny is of this project
  for (const auto& [name, parameters] : published) {
    EXPECT_EQ(load_model_config(zoo_folder(name)).num_parameters(), parameters) << name;
    ++models;
  }
  std::size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(zoo_folder(""))) folders += entry.is_directory() ? 1 : 0;
  EXPECT_EQ(folders, models) << "a model without a published count";
}

// GPT-2's blocks hold 12 E^2 weights, and its head is the embedding's table (Radford et al. 2019).
TEST(ModelZoo, MatricesOfGpt2AreCountedOnce) {
  const auto config = load_model_config(zoo_folder("gpt2-124m"));
  EXPECT_EQ(config.num_matmul_parameters(), 12 * 12 * 768 * 768 + 50257 * 768);
  EXPECT_EQ(config.num_embedding_parameters(), (50257 + 1024) * 768);
  EXPECT_EQ(config.num_head_parameters(), 2 * 768);
}

TEST(ModelZoo, WhatIsNotTrainedIsNamed) {
  for (const auto& [name, type] : {std::pair("gpt2-355m", "gpt2"), std::pair("qwen2.5-7b", "qwen2"),
                                   std::pair("qwen3-8b", "qwen3"), std::pair("mistral-7b", "mistral")}) {
    const auto config = load_model_config(zoo_folder(name));
    EXPECT_FALSE(is_trained(config));
    try {
      require_trained(config);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::recipe);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(type), HasSubstr("by formula only")));
    }
  }
  EXPECT_NO_THROW(require_trained(load_model_config(zoo_folder("llama-3.2-1b"))));
}

TEST(ModelZoo, SettingsOfOtherFamiliesAreKnown) {
  EXPECT_THAT(load_model_config(zoo_folder("mistral-7b")).notes, Contains(HasSubstr("sliding_window 4096")));
  EXPECT_THAT(refusal("qwen2.5-7b", R"({"use_sliding_window": true})"), HasSubstr("use_sliding_window: true"));
  EXPECT_THAT(refusal("qwen3-8b", R"({"attention_bias": true})"), HasSubstr("attention_bias: true"));
  EXPECT_THAT(refusal("gpt2-124m", R"({"activation_function": "relu"})"), HasSubstr("activation_function: \"relu\""));
  EXPECT_THAT(refusal("gpt2-124m", R"({"n_head": 7})"), AllOf(HasSubstr("n_head: 7"), HasSubstr("n_embd (768)")));
  EXPECT_THAT(refusal("gpt2-124m", R"({"hidden_size": 64})"), HasSubstr("hidden_size: 64"));
  EXPECT_EQ(load_model_config(zoo_folder("gpt2-124m"), R"({"n_layer": 2})").num_hidden_layers, 2);
  EXPECT_EQ(load_model_config(zoo_folder("gpt2-124m"), R"({"n_inner": 100})").intermediate_size, 100);
}

}  // namespace
}  // namespace assay
