#include "harness/memory/activation_formula.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "harness/memory/lora_formula.h"

namespace assay {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kInt64 = 8;

/// Of a block, for one token.
struct BlockBytes {
  std::int64_t kept = 0;      ///< from its forward to its backward
  std::int64_t computed = 0;  ///< when it is computed again
};

struct Shape {
  const Recipe& recipe;
  const ModelConfig& config;
  std::int64_t element;           ///< bytes of the compute dtype
  std::int64_t gradient_element;  ///< bytes of a gradient

  std::int64_t hidden() const { return config.hidden_size; }
  std::int64_t inner() const { return config.intermediate_size; }
  std::int64_t queries() const { return config.num_attention_heads * config.head_dim; }
  std::int64_t keys() const { return config.num_key_value_heads * config.head_dim; }
  std::int64_t tokens() const { return recipe.train.micro_batch_size * recipe.data.sequence_length; }
  /// 16-bit products of a CPU go through fp32 (model/products.h).
  bool products_in_fp32() const { return recipe.device != DeviceChoice::cuda && element < kFp32; }
  bool keeps_scores() const { return recipe.model.attention == AttentionChoice::math; }
};

/// Elements of softmax results of one token.
std::int64_t scores(const Shape& s) {
  return s.keeps_scores() ? s.config.num_attention_heads * s.recipe.data.sequence_length : 0;
}

/// Elements that only adapters need of a block whose matrices are frozen: inputs, and what A makes of them.
std::int64_t adapter_inputs(const Shape& s, std::int64_t layer) {
  std::int64_t attention_input = 0;
  std::int64_t mlp_input = 0;
  std::int64_t last_input = 0;
  std::int64_t others = 0;
  for (const auto& [matrix, rank] : block_adapters(s.recipe.lora, s.config, layer)) {
    const std::string_view name = matrix.name;
    const bool into_hidden = matrix.out == s.hidden();
    if (name.starts_with("mlp.")) {
      (into_hidden ? last_input : mlp_input) = matrix.in;
    } else if (!into_hidden || !(name.ends_with("o_proj") || name.ends_with("c_proj"))) {
      attention_input = matrix.in;
    }
    others += rank + (s.recipe.lora.lora_dropout > 0 ? matrix.in + matrix.in / s.element : 0);
  }
  return attention_input + mlp_input + last_input + others;
}

BlockBytes block_bytes(const Shape& s, std::int64_t layer) {
  const auto& config = s.config;
  const std::int64_t wide = (config.gated_mlp ? 2 : 1) * s.inner();
  const std::int64_t attended = 2 * s.queries() + 2 * s.keys() + scores(s);
  const std::int64_t normed_heads = config.qk_norm ? s.queries() + s.keys() : 0;
  const std::int64_t roots =
      (config.other_biases ? 4 : 2) + (config.qk_norm ? config.num_attention_heads + config.num_key_value_heads : 0);
  const std::int64_t statistics = (config.num_attention_heads + roots) * kFp32;
  // The inputs of the matrices beside those that other operators keep anyway.
  const std::int64_t inputs = trains_adapters(s.recipe.mode) ? adapter_inputs(s, layer) : 2 * s.hidden() + s.inner();
  const std::int64_t all = (2 * s.hidden() + attended + normed_heads + wide + inputs) * s.element + statistics;
  const std::int64_t taped =
      (2 * s.hidden() + 2 * s.queries() + 2 * s.keys() + wide) * s.element + config.num_attention_heads * kFp32;
  switch (s.recipe.train.activation_checkpointing) {
    case ActivationCheckpointing::none:
      return {all, 0};
    case ActivationCheckpointing::selective:
      return {taped, std::max<std::int64_t>(0, all - taped)};
    case ActivationCheckpointing::full:
      return {s.hidden() * s.element, all - s.hidden() * s.element};
  }
  return {all, 0};
}

std::int64_t largest_matrix(const ModelConfig& config) {
  std::int64_t largest = 0;
  for (const auto& matrix : config.block_matrices()) largest = std::max(largest, matrix.in * matrix.out);
  return largest;
}

/// While a block is differentiated, beside all that it kept.
std::int64_t gradients_in_block(const Shape& s) {
  const std::int64_t matrix = largest_matrix(s.config);
  const std::int64_t dequantised = s.recipe.quantization.type == QuantizationType::nf4 ? matrix * s.element : 0;
  if (s.products_in_fp32()) {
    return s.tokens() * (6 * s.hidden() + 8 * s.inner()) + std::max(2 * s.tokens() * s.inner(), kFp32 * matrix) +
           dequantised;
  }
  const std::int64_t inner = (s.config.gated_mlp ? 3 : 1) * s.inner();
  return s.tokens() * std::max(inner + s.hidden(), s.hidden() + 2 * scores(s)) * s.element + dequantised;
}

std::int64_t at_loss(const Shape& s) {
  const std::int64_t chunk = std::min(s.tokens(), s.recipe.train.loss_chunk_tokens);
  const std::int64_t table = s.config.vocab_size * s.hidden();
  std::int64_t bytes = s.tokens() * (3 * s.hidden() * s.element + kFp32) + 2 * chunk * s.config.vocab_size * kFp32;
  if (s.products_in_fp32()) bytes += kFp32 * (table + chunk * s.hidden());
  if (s.gradient_element < kFp32 && trains_head(s.recipe)) bytes += kFp32 * table;
  return bytes;
}

std::int64_t in_embedding(const Shape& s) {
  if (!trains_embedding(s.recipe)) return 0;
  const std::int64_t copy = s.element < kFp32 ? kFp32 : 0;
  const std::int64_t table = s.config.vocab_size * s.hidden();
  const std::int64_t sum = s.gradient_element < kFp32 ? (kFp32 + s.gradient_element) * table : 0;
  return s.tokens() * s.hidden() * (s.element + copy) + sum;
}

/// Keys and values of all tokens; the prompt's pass through one block; the logits of the last token.
ActivationBytes inference_bytes(const Shape& s) {
  const auto& options = s.recipe.inference;
  const std::int64_t prompt = options.batch_size * options.prompt_tokens;
  const std::int64_t all_tokens = options.batch_size * (options.prompt_tokens + options.new_tokens);
  const std::int64_t matrix = largest_matrix(s.config);
  const bool quantized = s.recipe.quantization.type == QuantizationType::nf4;
  ActivationBytes bytes;
  bytes.batches = all_tokens * kInt64;
  bytes.kept = all_tokens * s.config.num_hidden_layers * 2 * s.keys() * s.element;
  bytes.at_loss = prompt * (2 * s.hidden() + (s.config.gated_mlp ? 3 : 2) * s.inner()) * s.element +
                  options.batch_size * s.config.vocab_size * kFp32 + (quantized ? matrix * s.element : 0);
  return bytes;
}

}  // namespace

ActivationBytes activation_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t compute_bytes,
                                 std::int64_t gradient_bytes) {
  const Shape shape{recipe, config, compute_bytes, gradient_bytes};
  if (recipe.mode == Mode::inference) return inference_bytes(shape);
  ActivationBytes bytes;
  std::int64_t computed = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto block = block_bytes(shape, layer);
    bytes.kept += shape.tokens() * block.kept;
    computed = std::max(computed, block.computed);
  }
  bytes.batches = recipe.train.gradient_accumulation_steps * shape.tokens() * (2 * kInt64 + kFp32);
  bytes.at_loss = at_loss(shape);
  bytes.in_block = shape.tokens() * computed + gradients_in_block(shape);
  bytes.in_embedding = in_embedding(shape);
  constexpr std::int64_t kNormElements = std::int64_t{1} << 20;  // sharding/gradient_norm.cpp
  bytes.in_update = gradient_bytes < kFp32 ? kNormElements * kFp32 : 0;
  return bytes;
}

}  // namespace assay
