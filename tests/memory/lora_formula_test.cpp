#include "harness/memory/lora_formula.h"

#include <gtest/gtest.h>

#include "harness/core/error.h"
#include "tests/memory/formula_case.h"

namespace assay {
namespace {

std::int64_t trained(const std::string& model, const LoraOptions& lora) {
  auto recipe = formula_recipe(Mode::lora, Precision::bf16);
  recipe.lora = lora;
  return num_trained_parameters(recipe, zoo_model(model));
}

LoraOptions with(std::int64_t r, std::vector<std::string> target_modules) {
  LoraOptions lora;
  lora.r = r;
  lora.target_modules = std::move(target_modules);
  return lora;
}

// Counts that PEFT printed (print_trainable_parameters) for Llama-2-7B.
TEST(LoraFormula, TrainedParametersAreThosePeftPrints) {
  EXPECT_EQ(trained("llama-2-7b", with(8, {"q_proj", "v_proj"})), 4'194'304);
  EXPECT_EQ(trained("llama-2-7b", with(16, {"all-linear"})), 39'976'960);
  EXPECT_EQ(trained("llama-2-7b", with(64, {"all-linear"})), 159'907'840);
}

TEST(LoraFormula, NamesArePartsOrPatternsOfModulePaths) {
  const std::int64_t one_layer_q = 8 * (4096 + 4096);
  EXPECT_EQ(trained("llama-2-7b", with(8, {R"(model\.layers\.[01]\.self_attn\.q_proj)"})), 2 * one_layer_q);
  EXPECT_EQ(trained("llama-2-7b", with(8, {"layers.31.self_attn.q_proj"})), one_layer_q);
  EXPECT_EQ(trained("llama-2-7b", with(8, {"proj"})), 0);  // no part of a path ends so
  EXPECT_EQ(trained("gpt2-124m", with(8, {"c_attn"})), 12 * 8 * (768 + 3 * 768));
  auto patterned = with(8, {"q_proj"});
  patterned.rank_pattern = {{"layers.0.self_attn.q_proj", 16}};
  EXPECT_EQ(trained("llama-2-7b", patterned), 33 * one_layer_q);
  auto saved = with(8, {"q_proj"});
  saved.modules_to_save = {"embed_tokens", "lm_head"};
  EXPECT_EQ(trained("llama-2-7b", saved), 32 * one_layer_q + 2 * 32000 * 4096);
  EXPECT_THROW(trained("llama-2-7b", with(8, {"[q"})), Error);
}

// QLoRA paper, section 3: 0.5 bit a parameter for the scales, 0.127 with double quantization.
TEST(LoraFormula, Nf4TakesThePapersBitsAParameter) {
  constexpr std::int64_t kNumel = std::int64_t{1} << 26;
  const auto bits = [](bool double_quant) {
    return 8.0 * static_cast<double>(nf4_bytes({QuantizationType::nf4, 64, double_quant}, kNumel)) / kNumel;
  };
  EXPECT_DOUBLE_EQ(bits(false), 4.5);
  EXPECT_NEAR(bits(true), 4.127, 0.0005);
  EXPECT_EQ(nf4_bytes({QuantizationType::nf4, 64, false}, 65), 33 + 2 * 4);  // an odd rest takes a byte and a scale
}

// Guide 2: 4-bit 7B is about 5 GB; a frozen base has no gradients and no optimizer state. The smallest vocabulary with
// double quantization is just below: 3.9 GB.
TEST(LoraFormula, QloraOfSevenBillionIsFourToSixGb) {
  const auto terms_of = [](const std::string& model, bool double_quant) {
    auto recipe = formula_recipe(Mode::qlora, Precision::bf16);
    recipe.quantization.double_quant = double_quant;
    return formula_bytes(recipe, zoo_model(model), 1);
  };
  for (const auto& [model, double_quant] :
       {std::pair("llama-2-7b", false), std::pair("mistral-7b", true), std::pair("mistral-7b", false),
        std::pair("qwen2.5-7b", true), std::pair("qwen2.5-7b", false)}) {
    const auto weights = terms_of(model, double_quant).weights;
    EXPECT_GT(weights, 4'000'000'000) << model;
    EXPECT_LT(weights, 6'000'000'000) << model;
  }
  // 6,476,005,376 weights of 7 matrices in 32 blocks; embedding, head, 65 norms and the adapters in 16 bits.
  const auto terms = terms_of("llama-2-7b", true);
  EXPECT_NEAR(static_cast<double>(terms.weights),
              6'476'005'376.0 * 4.127 / 8 + 2.0 * (2 * 32000 * 4096 + 65 * 4096 + 4'194'304), 1e6);
  EXPECT_EQ(terms.gradients, 4 * 4'194'304);
  EXPECT_EQ(terms.optimizer, 12 * 4'194'304);
}

// Guide 2: QLoRA of 7B to 14B on one 24 GB card with checkpointing; LoRA bf16 of 7B is tight there and overflows with
// the length; 13B needs 48 GB; full 7B does not fit 80 GB.
TEST(LoraFormula, TheFourTiersOfTheGuide) {
  const auto bytes = [](const std::string& model, Mode mode, std::int64_t tokens) {
    auto recipe = formula_recipe(mode, Precision::bf16, tokens);
    recipe.train.activation_checkpointing = ActivationCheckpointing::full;
    return static_cast<double>(formula_bytes(recipe, zoo_model(model), 1).total());
  };
  EXPECT_LT(bytes("llama-2-7b", Mode::qlora, 2048), 24e9);
  EXPECT_LT(bytes("qwen2.5-14b", Mode::qlora, 2048), 24e9);
  EXPECT_LT(bytes("llama-2-7b", Mode::lora, 2048), 24e9);
  EXPECT_GT(bytes("llama-2-7b", Mode::lora, 32768), 24e9);
  EXPECT_GT(bytes("llama-2-13b", Mode::lora, 2048), 24e9);
  EXPECT_LT(bytes("llama-2-13b", Mode::lora, 4096), 48e9);
  EXPECT_GT(bytes("llama-2-7b", Mode::full, 2048), 80e9);
}

// A frozen matrix does not need its input for backward, an adapter does.
TEST(LoraFormula, InputsAreKeptForAdaptersOnly) {
  const auto config = zoo_model("llama-2-7b");
  const auto activations = [&](Mode mode, const std::vector<std::string>& targets) {
    auto recipe = formula_recipe(mode, Precision::bf16);
    recipe.lora = with(8, targets);
    return formula_bytes(recipe, config, 1).activations;
  };
  const std::int64_t tokens = 4096LL * 32;
  const auto attention_only = activations(Mode::lora, {"q_proj", "v_proj"});
  EXPECT_EQ(activations(Mode::lora, {"q_proj", "v_proj", "down_proj"}) - attention_only, tokens * 2 * (11008 + 8));
  EXPECT_EQ(activations(Mode::lora, {"all-linear"}) - attention_only, tokens * 2 * (4096 + 11008 + 5 * 8));
  EXPECT_LT(attention_only, activations(Mode::full, {}));
}

}  // namespace
}  // namespace assay
