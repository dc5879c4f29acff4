#include "harness/train/load_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/safetensors_writer.h"
#include "harness/core/error.h"
#include "tests/support/owned_model.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

ModelConfig config_with(bool tied) {
  ModelConfig config = small_model_config();
  config.tie_word_embeddings = tied;
  return config;
}

NamedTensors weights_of(const ModelConfig& config) {
  OwnedModel owned(config);
  owned.initialize(7);
  NamedTensors weights;
  for (const auto* parameter : owned.parameters()) weights.emplace_back(parameter->name, parameter->value.detach());
  return weights;
}

// Writes a model folder with these tensors, loads it, and gives the model.
std::unique_ptr<OwnedModel> load(const ModelConfig& config, const NamedTensors& weights) {
  const TemporaryFolder folder;
  std::vector<TensorBytes> tensors;
  for (const auto& [name, tensor] : weights) {
    const std::string dtype = tensor.scalar_type() == at::kFloat  ? "F32"
                              : tensor.scalar_type() == at::kHalf ? "F16"
                                                                  : "BF16";
    tensors.push_back({name, dtype, tensor.sizes().vec(), tensor.const_data_ptr(), tensor.nbytes()});
  }
  write_safetensors(folder.path / "model.safetensors", tensors, {{"format", "pt"}});
  auto owned = std::make_unique<OwnedModel>(config);
  owned->load(folder.path);
  return owned;
}

std::string refusal(const ModelConfig& config, const NamedTensors& weights) {
  try {
    load(config, weights);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return "";
}

void expect_holds(OwnedModel& owned, const NamedTensors& weights) {
  for (const auto* parameter : owned.parameters()) {
    const auto found =
        std::find_if(weights.begin(), weights.end(), [&](const auto& w) { return w.first == parameter->name; });
    ASSERT_NE(found, weights.end()) << parameter->name;
    EXPECT_TRUE(at::equal(parameter->value, found->second.to(at::kFloat))) << parameter->name;
  }
}

TEST(LoadModel, FillsEveryParameterFromAnyFloatType) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    NamedTensors weights = weights_of(config_with(false));
    for (auto& [name, tensor] : weights) tensor = tensor.to(dtype);
    expect_holds(*load(config_with(false), weights), weights);
  }
}

// I09: the flag on or off, the head absent, present and equal, present and different.
TEST(LoadModel, TieFlagAndFileMustAgree) {
  const NamedTensors tied = weights_of(config_with(true));
  NamedTensors equal = tied;
  equal.emplace_back("lm_head.weight", tied.front().second);
  NamedTensors different = tied;
  different.emplace_back("lm_head.weight", tied.front().second + 1);

  expect_holds(*load(config_with(true), tied), tied);
  expect_holds(*load(config_with(true), equal), equal);
  EXPECT_THAT(refusal(config_with(true), different),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings is true")));
  EXPECT_THAT(refusal(config_with(false), tied), HasSubstr("lm_head.weight: is missing"));
  expect_holds(*load(config_with(false), equal), equal);
  expect_holds(*load(config_with(false), different), different);
}

// I25: a file of padded vocabulary, and the reverse.
TEST(LoadModel, AnotherVocabularyIsRefusedWithBothSizes) {
  ModelConfig config = config_with(true);
  config.vocab_size = 128;
  const NamedTensors padded = weights_of(config);
  config.vocab_size = 101;
  EXPECT_THAT(refusal(config, padded),
              AllOf(HasSubstr("model.embed_tokens.weight"), HasSubstr("[128, 64]"), HasSubstr("[101, 64]")));
  const NamedTensors exact = weights_of(config);
  config.vocab_size = 128;
  EXPECT_THAT(refusal(config, exact), AllOf(HasSubstr("[101, 64]"), HasSubstr("[128, 64]")));
}

// I07: a number of key-value heads that is possible, but not the file's.
TEST(LoadModel, OtherKeyValueHeadsThanTheFilesAreRefusedWithBothShapes) {
  const NamedTensors weights = weights_of(config_with(false));
  ModelConfig config = config_with(false);
  config.num_key_value_heads = 4;
  EXPECT_THAT(refusal(config, weights),
              AllOf(HasSubstr("layers.0.self_attn.k_proj.weight"), HasSubstr("layers.1.self_attn.v_proj.weight"),
                    HasSubstr("[32, 64]"), HasSubstr("[64, 64]")));
}

TEST(LoadModel, MissingAndSurplusTensorsAreAllNamedAtOnce) {
  NamedTensors weights = weights_of(config_with(false));
  weights[3].first = "model.layers.0.self_attn.q_norm.weight";
  weights.pop_back();
  EXPECT_THAT(refusal(config_with(false), weights),
              AllOf(HasSubstr("q_norm.weight: the model has no such parameter"),
                    HasSubstr("lm_head.weight: is missing"), HasSubstr("k_proj.weight: is missing")));
  weights = weights_of(config_with(false));
  weights[1].second = at::ones({65});
  EXPECT_THAT(refusal(config_with(false), weights), HasSubstr("[65]"));
}

}  // namespace
}  // namespace assay
