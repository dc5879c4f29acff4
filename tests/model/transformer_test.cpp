#include "model/transformer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "checkpoint/safetensors.h"
#include "harness/core/error.h"
#include "harness/train/load_model.h"
#include "harness/train/tensor_bytes.h"
#include "tests/support/owned_model.h"
#include "tests/support/reference_run.h"

namespace assay {
namespace {

using ::testing::HasSubstr;

// A CPU that keeps the tables it is given.
class RecordingDevice final : public Device {
 public:
  c10::Device torch_device() const override { return c10::Device(c10::kCPU); }
  at::Tensor upload(const std::vector<double>& values) override { return cpu_->upload(values); }
  at::Tensor upload(const std::vector<float>& values, at::IntArrayRef shape) override {
    return cpu_->upload(values, shape);
  }
  at::Tensor upload(const std::function<std::vector<float>()>& values, at::IntArrayRef shape) override {
    tables.push_back(cpu_->upload(values, shape));
    return tables.back();
  }
  at::Tensor upload(const std::vector<std::int64_t>& values, at::IntArrayRef shape) override {
    return cpu_->upload(values, shape);
  }
  std::vector<double> read(const at::Tensor& values) override { return cpu_->read(values); }

  std::vector<at::Tensor> tables;  ///< cos, sin

 private:
  std::unique_ptr<Device> cpu_ = make_cpu_device(1);
};

// transformers' _init_weights: norms 1, matrices normal(0, initializer_range). The mean of n draws is off by sigma /
// sqrt(n), their standard deviation by sigma / sqrt(2 n); 5 times that is exceeded once in a million.
TEST(Transformer, IsInitializedAsTransformersDoes) {
  ModelConfig config = small_model_config();
  config.initializer_range = 0.05;
  OwnedModel owned(config);
  owned.initialize(7);
  for (const auto* parameter : owned.parameters()) {
    const at::Tensor value = parameter->value.detach();
    if (!parameter->decayed()) {
      EXPECT_TRUE(at::equal(value, at::ones_like(value))) << parameter->name;
      continue;
    }
    const double root = std::sqrt(static_cast<double>(value.numel()));
    EXPECT_LE(std::abs(value.to(at::kDouble).mean().item<double>()), 5 * 0.05 / root) << parameter->name;
    EXPECT_NEAR(value.to(at::kDouble).std().item<double>(), 0.05, 5 * 0.05 / (root * std::sqrt(2))) << parameter->name;
  }
}

TEST(Transformer, TheSeedAloneMakesTheValues) {
  OwnedModel first(small_model_config());
  OwnedModel same(small_model_config());
  OwnedModel other(small_model_config());
  first.initialize(7);
  same.initialize(7);
  other.initialize(8);
  std::set<float> first_elements;
  for (std::size_t i = 0; i < first.parameters().size(); ++i) {
    const at::Tensor value = first.parameters()[i]->value.detach();
    EXPECT_TRUE(at::equal(value, same.parameters()[i]->value));
    if (!first.parameters()[i]->decayed()) continue;
    EXPECT_FALSE(at::equal(value, other.parameters()[i]->value));
    first_elements.insert(value.flatten()[0].item<float>());
  }
  EXPECT_EQ(first_elements.size(), 2U + 2 * 7) << "no two matrices begin alike";
}

TEST(Transformer, ParametersAreCountedAsTheConfigCountsThem) {
  for (const bool tied : {false, true}) {
    ModelConfig config = small_model_config();
    config.tie_word_embeddings = tied;
    OwnedModel owned(config);
    std::int64_t total = 0;
    for (const auto* parameter : owned.parameters()) total += parameter->numel();
    EXPECT_EQ(total, config.num_parameters());
  }
}

TEST(Transformer, ASequenceLongerThanTheModelIsRefused) {
  ModelConfig config = small_model_config();
  config.max_position_embeddings = 128;
  TransformerOptions options;
  options.sequence_length = 128;
  EXPECT_NO_THROW(OwnedModel(config, options));
  options.sequence_length = 129;
  try {
    OwnedModel owned(config, options);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_THAT(error.what(), HasSubstr("129"));
    EXPECT_THAT(error.what(), HasSubstr("max_position_embeddings 128"));
  }
}

// I22: tables are computed in fp32. An angle of 2000 has an error of 2 roundings, 2.4e-4; frequencies rounded to bf16
// would turn it by radians.
TEST(Transformer, RotaryTablesAreRightAtHighPositions) {
  TransformerOptions options;
  options.sequence_length = 2001;
  RecordingDevice device;
  const Transformer model(small_model_config(), options, device);
  ASSERT_EQ(device.tables.size(), 2U);
  for (const std::int64_t position : {0, 1, 2000}) {
    for (std::int64_t i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(i) / 8);
      const double bound = 1e-7 + 1.2e-7 * angle;
      EXPECT_NEAR(device.tables[0][position][0][i].item<double>(), std::cos(angle), bound) << position << " " << i;
      EXPECT_NEAR(device.tables[1][position][0][i].item<double>(), std::sin(angle), bound) << position << " " << i;
    }
  }
}

// I01: the scaling reaches the logits. At position 0 nothing turns; far out the last logits move.
TEST(Transformer, RotaryScalingReachesTheLogits) {
  const std::int64_t length = 512;
  TransformerOptions options;
  options.sequence_length = length;
  ModelConfig scaled = small_model_config();
  scaled.rope = {RopeType::llama3, 10000, 8, 1, 4, 64};
  ModelConfig linear = small_model_config();
  linear.rope.type = RopeType::linear;
  linear.rope.factor = 4;
  const at::Tensor ids = at::arange(length).remainder(300).unsqueeze(0);
  const auto logits = [&](ModelConfig config) {
    config.initializer_range = 0.2;  // attention that is not flat
    OwnedModel owned(config, options);
    owned.initialize(7);
    const at::NoGradGuard no_grad;
    return owned.model.logits(ids);
  };
  const at::Tensor plain = logits(small_model_config());
  for (const auto& config : {scaled, linear}) {
    const at::Tensor difference = (logits(config) - plain).abs();
    EXPECT_EQ(difference[0][0].max().item<float>(), 0);
    EXPECT_GT(difference[0][length - 1].max().item<float>(), 1e-2);
  }
}

// Everything that transformers computed from the same weights. Tolerances as in case.json there.
class PublishedModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder = data_folder() / "models" / GetParam();
  ModelConfig config = load_model_config(folder);
};

TEST_P(PublishedModel, HasTheNamesAndShapesOfItsFile) {
  OwnedModel owned(config);
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_EQ(owned.parameters().size(), file.tensors().size());
  for (const auto* parameter : owned.parameters()) {
    const TensorInfo* info = file.find(parameter->name);
    ASSERT_NE(info, nullptr) << parameter->name;
    EXPECT_EQ(info->shape, parameter->shape) << parameter->name;
    EXPECT_EQ(config.tie_word_embeddings && parameter->name == "lm_head.weight", false);
  }
}

TEST_P(PublishedModel, GivesTheLogitsLossAndGradientsOfTransformers) {
  const SafetensorsFile expected(folder / "expected.safetensors");
  const auto read = [&](const std::string& name) {
    const TensorInfo* info = expected.find(name);
    if (info == nullptr) throw std::runtime_error(name + " is missing");
    return tensor_over(*info, expected.bytes(*info)).clone();
  };
  const at::Tensor ids = read("input_ids");
  const at::Tensor labels = read("labels");
  TransformerOptions options;
  options.sequence_length = ids.size(1);
  options.loss_chunk_tokens = 17;
  OwnedModel owned(config, options);
  owned.load(folder);
  {
    const at::NoGradGuard no_grad;
    EXPECT_LE((owned.model.logits(ids) - read("logits")).abs().max().item<double>(), 5e-5);
  }
  const at::Tensor next =
      at::cat({labels.narrow(1, 1, ids.size(1) - 1), at::full({ids.size(0), 1}, -100)}, 1).reshape({-1});
  const at::Tensor trained = next.ne(-100).to(at::kFloat);
  const at::Tensor loss = owned.model.loss(ids, next.clamp_min(0), trained / trained.sum());
  EXPECT_NEAR(loss.item<double>(), read("loss").item<double>(), 1e-5);
  loss.backward();
  for (const auto* parameter : owned.parameters()) {
    const at::Tensor theirs = read("grad." + parameter->name);
    const double error = ((parameter->value.grad() - theirs).norm() / theirs.norm()).item<double>();
    EXPECT_LE(error, 1e-4) << parameter->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Transformers, PublishedModel, ::testing::Values("llama_gqa", "llama_tied_rope3"));

// In bf16 transformers' own logits are off from its fp32 ones by so much (case.json there): ours may be off by twice
// that at most, by one and a half times in the mean, and not by nothing.
TEST(Transformer, LogitsInBf16AreAsFarFromFp32AsThoseOfTransformers) {
  const auto folder = data_folder() / "models" / "llama_gqa";
  const Json stored = parse_json(read_text_file(folder / "case.json"), "case.json")["bf16"]["diff_to_fp32"];
  const SafetensorsFile expected(folder / "expected.safetensors");
  const auto read = [&](const char* name) {
    const TensorInfo& info = *expected.find(name);
    return tensor_over(info, expected.bytes(info));
  };
  TransformerOptions options;
  options.sequence_length = read("input_ids").size(1);
  OwnedModel owned(load_model_config(folder), options, {at::kBFloat16, at::kFloat});
  owned.load(folder);
  const at::Tensor logits = owned.model.logits(read("input_ids"));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  const at::Tensor difference = (logits - read("logits")).abs();
  EXPECT_LE(difference.max().item<double>(), 2 * stored["max_abs"].get<double>());
  EXPECT_LE(difference.mean().item<double>(), 1.5 * stored["mean_abs"].get<double>());
  EXPECT_GT(difference.mean().item<double>(), stored["mean_abs"].get<double>() / 10);
}

// Tied: the head's gradient and the embedding's are one tensor. Each part is what an untied twin has by itself.
TEST(Transformer, ATiedEmbeddingHasOneGradient) {
  ModelConfig config = small_model_config();
  TransformerOptions options;
  options.sequence_length = 8;
  const at::Tensor ids = at::arange(16).view({2, 8});
  const at::Tensor targets = at::arange(100, 116);
  const at::Tensor weights = at::full({16}, 1.0 / 16);
  OwnedModel untied(config, options);
  config.tie_word_embeddings = true;
  OwnedModel tied(config, options);
  tied.initialize(7);
  for (auto* parameter : untied.parameters()) {
    const at::NoGradGuard no_grad;
    const std::string source = parameter->name == "lm_head.weight" ? "model.embed_tokens.weight" : parameter->name;
    for (const auto* other : tied.parameters()) {
      if (other->name == source) parameter->value.copy_(other->value);
    }
  }
  const at::Tensor tied_loss = tied.model.loss(ids, targets, weights);
  const at::Tensor untied_loss = untied.model.loss(ids, targets, weights);
  EXPECT_EQ(tied_loss.item<double>(), untied_loss.item<double>());
  tied_loss.backward();
  untied_loss.backward();
  const at::Tensor embedding = untied.parameters().front()->value.grad();
  const at::Tensor head = untied.parameters().back()->value.grad();
  ASSERT_EQ(untied.parameters().back()->name, "lm_head.weight");
  EXPECT_GT(embedding.norm().item<double>(), 0);
  EXPECT_GT(head.norm().item<double>(), 0);
  const at::Tensor both = embedding + head;
  EXPECT_LE((tied.parameters().front()->value.grad() - both).norm().item<double>(), 1e-6 * both.norm().item<double>());
}

}  // namespace
}  // namespace assay
