#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>
#include <set>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A complete config of 4 heads, to be changed by each test; the value "absent" takes a key away.
const char* const kBase = R"({"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 160,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";

ModelConfig load(const Json& json, const std::string& overrides = "{}") {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "config.json") << dump_json(json);
  return load_model_config(folder.path, overrides);
}

Json changed(const std::string& changes) {
  Json json = parse_json(kBase, "base");
  const Json values = parse_json(changes, "changes");
  for (const auto& [key, value] : values.items()) {
    json[key] = value;
    if (value == "absent") json.erase(key);
  }
  return json;
}

std::string refusal(const Json& json, const std::string& overrides = "{}") {
  try {
    load(json, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), overrides == "{}" ? ErrorKind::data : ErrorKind::recipe) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was accepted: " << dump_json(json) << " with " << overrides;
  return "";
}

std::string refusal_of(const std::string& changes) { return refusal(changed(changes)); }

ModelConfig without_notes(ModelConfig config) {
  config.notes.clear();
  return config;
}

TEST(ModelConfig, BothSpellingsOfTransformersGiveTheSameModel) {
  for (const char* name : {"llama_gqa", "llama_tied_rope3"}) {
    const auto folder = std::filesystem::path(ASSAY_SOURCE_DIR) / "tests/data/models" / name;
    const Json legacy = parse_json(read_text_file(folder / "config_legacy.json"), "config_legacy.json");
    const ModelConfig newest = load_model_config(folder);
    EXPECT_EQ(without_notes(newest), without_notes(load(legacy))) << name;
    EXPECT_EQ(newest.rope.type, name == std::string("llama_gqa") ? RopeType::standard : RopeType::llama3);
    EXPECT_EQ(newest.rms_norm_eps, 1e-5);
  }
}

// I04: on top, nested, both and different, nowhere.
TEST(ModelConfig, TheRotaryBaseIsFoundWhereverItStands) {
  const auto top = load(changed(R"({"rope_theta": 500000.0})"));
  const auto nested =
      load(changed(R"({"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}})"));
  EXPECT_EQ(top.rope.theta, 500000);
  EXPECT_EQ(without_notes(top), without_notes(nested));
  EXPECT_THAT(
      refusal_of(R"({"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}})"),
      AllOf(HasSubstr("rope_theta: 10000"), HasSubstr("500000")));
  EXPECT_EQ(load(changed(R"({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}})")).rope.theta, 500000);
  const auto nowhere = load(changed(R"({"rope_theta": "absent", "torch_dtype": "float32"})"));
  EXPECT_EQ(nowhere.rope.theta, 10000);
  EXPECT_THAT(nowhere.notes, ::testing::Contains(HasSubstr("rope_theta is absent, the default is taken")));
}

// Llama 3.1's published rule. With c = original length x frequency / (2 pi), the turns within the original length:
// below low_freq_factor turns the frequency is divided by the factor, above high_freq_factor it stays, between the two
// it moves from one to the other in proportion to c.
double llama3_frequency(double theta, double share, double factor, double original_length) {
  const double frequency = std::exp(-share * std::log(theta));
  const double turns = original_length * frequency / (2 * std::numbers::pi);
  const double kept = turns < 1 ? 0 : turns > 4 ? 1 : (turns - 1) / 3;
  return frequency * (kept + (1 - kept) / factor);
}

// I01: factors 8 and 32 as published, head sizes 16 and 128, both spellings of the key.
TEST(ModelConfig, TheLlama3FrequencyTableFollowsThePublishedFormula) {
  for (const double factor : {8.0, 32.0}) {
    for (const char* spelling : {"rope_type", "type"}) {
      Json json = changed(R"({"rope_theta": 500000.0, "max_position_embeddings": 131072})");
      json["rope_scaling"] = {{spelling, "llama3"},
                              {"factor", factor},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
      const auto config = load(json);
      EXPECT_EQ(config.rope.type, RopeType::llama3);
      std::set<int> bands;
      for (const std::int64_t head_dim : {16, 128}) {
        const auto table = rotary_frequencies(config.rope, head_dim);
        ASSERT_EQ(table.size(), static_cast<std::size_t>(head_dim / 2));
        for (std::size_t i = 0; i < table.size(); ++i) {
          const double share = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
          const double plain = std::pow(500000.0, -share);
          const double expected = llama3_frequency(500000, share, factor, 8192);
          EXPECT_NEAR(table[i], expected, 1e-7 * expected)
              << "factor " << factor << ", pair " << i;  // one fp32 rounding
          bands.insert(expected == plain ? 0 : expected < plain / factor * (1 + 1e-12) ? 2 : 1);
        }
      }
      EXPECT_EQ(bands.size(), 3U) << "the table must touch all three bands";
    }
  }
}

TEST(ModelConfig, UnknownOrIncompleteRotaryScalingIsRefused) {
  EXPECT_THAT(refusal_of(R"({"rope_scaling": {"rope_type": "yarn", "factor": 8.0}})"),
              HasSubstr("rope_type: \"yarn\""));
  EXPECT_THAT(refusal_of(R"({"rope_scaling": {"type": "dynamic", "factor": 8.0}})"), HasSubstr("type: \"dynamic\""));
  EXPECT_THAT(refusal_of(R"({"rope_scaling": {"rope_type": "linear"}})"), HasSubstr("factor is missing"));
  EXPECT_THAT(refusal_of(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0}})"),
              HasSubstr("original_max_position_embeddings is missing"));
  EXPECT_THAT(refusal_of(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})"),
              HasSubstr("high_freq_factor: 4"));
  EXPECT_THAT(refusal_of(R"({"rope_scaling": {"rope_type": "linear", "factor": -2.0}})"), HasSubstr("factor: -2"));
  EXPECT_THAT(refusal_of(R"({"rope_scaling": "linear"})"), HasSubstr("must be an object"));
  EXPECT_THAT(refusal_of(R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})"),
              HasSubstr("partial_rotary_factor: 0.5"));
}

// I03: a scaling turned on by the recipe changes the table, each in its way.
TEST(ModelConfig, EveryScalingThatIsOverriddenChangesTheTable) {
  const auto table = [](const std::string& overrides) {
    const auto config = load(changed(R"({"rope_theta": 500000.0})"), overrides);
    return rotary_frequencies(config.rope, config.head_dim);
  };
  const std::set<std::vector<float>> tables{
      table("{}"),
      table(R"({"rope_theta": 10000.0})"),
      table(R"({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})"),
      table(R"({"rope_scaling": {"rope_type": "linear", "factor": 4.0}})"),
      table(R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 8192}})"),
      table(R"({"rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 8192}})")};
  EXPECT_EQ(tables.size(), 6U);
}

// I07
TEST(ModelConfig, KeyValueHeadsMissingMeansAsManyAsHeads) {
  EXPECT_EQ(load(changed(R"({"num_key_value_heads": "absent"})")).num_key_value_heads, 4);
  EXPECT_EQ(load(changed(R"({"num_key_value_heads": null})")).num_key_value_heads, 4);
  EXPECT_EQ(load(changed(R"({"num_key_value_heads": 1})")).num_key_value_heads, 1);
  EXPECT_THAT(refusal_of(R"({"num_key_value_heads": 0})"), HasSubstr("num_key_value_heads: 0"));
  EXPECT_THAT(refusal_of(R"({"num_key_value_heads": 3})"),
              AllOf(HasSubstr("num_key_value_heads: 3"), HasSubstr("num_attention_heads (4)")));
  EXPECT_THAT(refusal_of(R"({"num_key_value_heads": -2})"), HasSubstr("num_key_value_heads: -2"));
}

// I21
TEST(ModelConfig, TheNormEpsilonIsTheFilesOwnAndADefaultIsListed) {
  EXPECT_EQ(load(changed(R"({"rms_norm_eps": 1e-5})")).rms_norm_eps, 1e-5);
  EXPECT_EQ(load(changed(R"({"rms_norm_eps": 1e-6})")).rms_norm_eps, 1e-6);
  const auto missing = load(changed(R"({"rms_norm_eps": "absent"})"));
  EXPECT_EQ(missing.rms_norm_eps, 1e-6);
  EXPECT_THAT(missing.notes, ::testing::Contains(HasSubstr("rms_norm_eps is absent")));
}

TEST(ModelConfig, OverridesWinOverTheFileAndAreNamedInErrors) {
  EXPECT_EQ(load(changed("{}"), R"({"num_hidden_layers": 7, "tie_word_embeddings": true})").num_hidden_layers, 7);
  EXPECT_THAT(refusal(changed("{}"), R"({"num_hidden_layers": 0})"),
              AllOf(HasSubstr("model.config"), HasSubstr("num_hidden_layers: 0")));
  EXPECT_THAT(refusal(changed("{}"), R"({"sliding_window": 16})"), HasSubstr("sliding_window: 16"));
  EXPECT_THAT(refusal(changed("{}"), "[1]"), HasSubstr("model.config"));
  EXPECT_THAT(refusal(changed("{}"), R"({"num_hidden_layer": 2})"), HasSubstr("did you mean num_hidden_layers?"));
  EXPECT_NO_THROW(load(changed(R"({"a_note": 1})"), R"({"a_note": 2})"));  // the file has it
}

TEST(ModelConfig, AnOverrideInsideAnObjectLeavesItsOtherKeys) {
  const auto file =
      changed(R"({"rope_theta": "absent", "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0,
      "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
  auto expected = load(file).rope;
  expected.factor = 16;
  EXPECT_EQ(load(file, R"({"rope_parameters": {"factor": 16.0}})").rope, expected);
}

TEST(ModelConfig, WhatIsNotComputedIsRefusedByKeyAndValue) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model_type": "mixtral"})", "model_type: \"mixtral\""},
      {R"({"attention_bias": true})", "attention_bias: true"},
      {R"({"mlp_bias": true})", "mlp_bias: true"},
      {R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\""},
      {R"({"num_experts": 8})", "num_experts: 8"},
      {R"({"num_local_experts": 8})", "num_local_experts: 8"},
      {R"({"sliding_window": 4096})", "sliding_window: 4096"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config: {\"bits\":4}"},
      {R"({"attention_dropout": 0.1})", "attention_dropout: 0.1"},
      {R"({"pretraining_tp": 2})", "pretraining_tp: 2"}};
  for (const auto& [changes, named] : cases)
    EXPECT_THAT(refusal_of(changes), AllOf(HasSubstr("config.json"), HasSubstr(named)));
  EXPECT_NO_THROW(load(changed(R"({"sliding_window": null, "attention_bias": false, "hidden_act": "silu"})")));
  EXPECT_THAT(load(changed(R"({"clip_qkv": 8})")).notes, ::testing::Contains(HasSubstr("clip_qkv is unknown")));
}

TEST(ModelConfig, MissingKeysWrongTypesAndWrongNumbersAreRefused) {
  for (const char* key :
       {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json json = changed("{}");
    json.erase(key);
    EXPECT_THAT(refusal(json), HasSubstr(std::string(key) + " is missing"));
    json[key] = Json::array({1});
    EXPECT_THAT(refusal(json), HasSubstr(std::string(key) + ": [1]"));
  }
  for (const char* value : {"9223372036854775808", "18446744073709551616", "-1", "64.0", "\"64\"", "true", "0"}) {
    EXPECT_THAT(refusal_of(std::string(R"({"hidden_size": )") + value + "}"), HasSubstr("hidden_size: ")) << value;
  }
  for (const char* value : {"0", "-1e-5", "\"1e-5\"", "true"}) {
    EXPECT_THAT(refusal_of(std::string(R"({"rms_norm_eps": )") + value + "}"), HasSubstr("rms_norm_eps: ")) << value;
  }
  EXPECT_THAT(refusal_of(R"({"tie_word_embeddings": 1})"), HasSubstr("tie_word_embeddings: 1"));
  EXPECT_THAT(refusal_of(R"({"hidden_size": 66})"), HasSubstr("hidden_size (66)"));
  EXPECT_THAT(refusal_of(R"({"head_dim": 15})"), HasSubstr("head_dim: 15"));
  EXPECT_THAT(refusal_of(R"({"hidden_size": 1099511627776, "vocab_size": 1099511627776})"), HasSubstr("parameters"));
  EXPECT_THAT(refusal(Json::array()), HasSubstr("JSON object"));
  EXPECT_THROW(load_model_config("/nonexistent"), Error);
}

// Numbers of the model cards.
TEST(ModelConfig, ParametersOfPublishedModelsAreCounted) {
  const auto count = [](const std::string& values) {
    return load(changed(R"({"num_key_value_heads": "absent"})"), values).num_parameters();
  };
  EXPECT_EQ(count(R"({"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                      "num_attention_heads": 32, "num_key_value_heads": 8})"),
            8'030'261'248);  // Llama 3.1 8B
  EXPECT_EQ(count(R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                      "num_attention_heads": 32})"),
            6'738'415'616);  // Llama 2 7B
  EXPECT_EQ(count(R"({"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                      "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": true})"),
            1'235'814'400);  // Llama 3.2 1B, tied
}

// Counts one by one the multiply-adds of the forward pass over one row. `pairs` counts query-key pairs twice, so that
// one on the diagonal may count as a half.
struct Count {
  double matmuls = 0;
  double below_diagonal = 0;
  double diagonal = 0;
};

Count count_multiply_adds(const ModelConfig& config, std::int64_t length) {
  Count count;
  const auto matrix = [&](std::int64_t in, std::int64_t out) {
    for (std::int64_t row = 0; row < out; ++row) {
      for (std::int64_t column = 0; column < in; ++column) count.matmuls += 1;
    }
  };
  for (std::int64_t query = 0; query < length; ++query) {
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      matrix(config.hidden_size, config.num_attention_heads * config.head_dim);
      matrix(config.hidden_size, config.num_key_value_heads * config.head_dim);
      matrix(config.hidden_size, config.num_key_value_heads * config.head_dim);
      matrix(config.num_attention_heads * config.head_dim, config.hidden_size);
      matrix(config.hidden_size, config.intermediate_size);
      matrix(config.hidden_size, config.intermediate_size);
      matrix(config.intermediate_size, config.hidden_size);
      for (std::int64_t head = 0; head < config.num_attention_heads; ++head) {
        for (std::int64_t key = 0; key <= query; ++key) {
          (key == query ? count.diagonal : count.below_diagonal) +=
              2.0 * static_cast<double>(config.head_dim);  // QK', PV
        }
      }
    }
    matrix(config.hidden_size, config.vocab_size);
  }
  return count;
}

// J02. A multiply-add is 2 FLOPs, backward is twice forward. The causal half is L^2 / 2 pairs of L^2: all below the
// diagonal and half of the diagonal. Counting the diagonal in full would add 1 part in L to the attention.
TEST(ModelConfig, FlopsEqualACountOfMultiplyAddsWithCausalAttentionAtHalf) {
  const auto config = load(changed("{}"), R"({"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
                                              "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2,
                                              "head_dim": 4})");
  for (const std::int64_t length : {64, 4096}) {
    const Count count = count_multiply_adds(config, length);
    const double tokens = static_cast<double>(length);
    const double half = 6 * (count.matmuls + count.below_diagonal + count.diagonal / 2) / tokens;
    EXPECT_DOUBLE_EQ(config.model_flops_per_token(length), half);
    const double whole_diagonal = 6 * (count.matmuls + count.below_diagonal + count.diagonal) / tokens;
    EXPECT_NEAR(config.model_flops_per_token(length), whole_diagonal, whole_diagonal / tokens);
  }
}

}  // namespace
}  // namespace assay
