#include "harness/memory/formula.h"

#include <algorithm>

namespace assay {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kBf16 = 2;
constexpr std::int64_t kInt64 = 8;

/// Bytes of one element of each kind, and over how many ranks it is spread.
struct Layout {
  std::int64_t weight = kFp32;  ///< as the network reads it
  std::int64_t master = 0;      ///< beside it, or instead of it under fsdp; 0: the weight is the master
  std::int64_t gradient = kFp32;
  std::int64_t moment = kFp32;
  std::int64_t wire = kFp32;
  std::int64_t world_size = 1;
  StrategyName strategy = StrategyName::none;

  bool shards_parameters() const { return strategy == StrategyName::fsdp; }
  bool shards_gradients() const { return shards_parameters() || strategy == StrategyName::zero2; }
  bool shards_optimizer() const { return shards_gradients() || strategy == StrategyName::zero1; }
};

std::int64_t bytes_of(FloatType type) { return type == FloatType::bf16 ? kBf16 : kFp32; }

Layout layout_of(const Recipe& recipe, std::int64_t world_size) {
  Layout layout;
  layout.world_size = world_size;
  layout.strategy = recipe.parallel.strategy.value_or(StrategyName::none);
  layout.moment = bytes_of(recipe.optimizer.moment_dtype.value_or(FloatType::fp32));
  layout.wire = bytes_of(recipe.parallel.reduce_dtype);
  if (recipe.train.precision == Precision::fp32) return layout;
  layout.weight = kBf16;
  if (recipe.train.precision == Precision::pure_bf16) {
    layout.gradient = layout.wire = kBf16;
  } else {
    layout.master = kFp32;
  }
  return layout;
}

struct BlockBytes {
  std::int64_t kept = 0;      ///< of each block, from its forward to its backward
  std::int64_t computed = 0;  ///< of one block at a time, when it is computed again
};

BlockBytes block_bytes_per_token(const Recipe& recipe, const ModelConfig& config, std::int64_t element) {
  const std::int64_t queries = config.num_attention_heads * config.head_dim;
  const std::int64_t keys = config.num_key_value_heads * config.head_dim;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t all =
      (4 * hidden + 2 * queries + 2 * keys + 3 * inner) * element + (config.num_attention_heads + 2) * kFp32;
  const std::int64_t taped =
      (2 * hidden + 2 * queries + 2 * keys + 2 * inner) * element + config.num_attention_heads * kFp32;
  switch (recipe.train.activation_checkpointing) {
    case ActivationCheckpointing::none:
      return {all, 0};
    case ActivationCheckpointing::selective:
      return {taped, all - taped};
    case ActivationCheckpointing::full:
      return {hidden * element, all - hidden * element};
  }
  return {all, 0};
}

std::int64_t activation_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t element) {
  const std::int64_t tokens = recipe.train.micro_batch_size * recipe.data.sequence_length;
  const std::int64_t chunk = std::min(tokens, recipe.train.loss_chunk_tokens);
  const auto block = block_bytes_per_token(recipe, config, element);
  const std::int64_t blocks = tokens * (config.num_hidden_layers * block.kept + block.computed);
  // The last block's output, its norm and the gradient of that; logits and their log-softmax for one chunk.
  const std::int64_t head = tokens * (3 * config.hidden_size * element + kFp32) + 2 * chunk * config.vocab_size * kFp32;
  const std::int64_t batches = recipe.train.gradient_accumulation_steps * tokens * (2 * kInt64 + kFp32);
  return blocks + head + batches;
}

std::int64_t largest_unit_elements(const ModelConfig& config) {
  const std::int64_t embedding = config.vocab_size * config.hidden_size;
  const std::int64_t block =
      config.hidden_size * config.head_dim * 2 * (config.num_attention_heads + config.num_key_value_heads) +
      3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size;
  const std::int64_t head = config.hidden_size + (config.tie_word_embeddings ? 0 : embedding);
  return std::max({embedding, block, head});
}

std::int64_t communication_bytes(const Recipe& recipe, const ModelConfig& config, const Layout& layout) {
  const std::int64_t in_flight = recipe.parallel.units_in_flight;
  std::int64_t per_element = 0;
  if (layout.shards_parameters()) per_element += in_flight * layout.weight;
  if (layout.shards_gradients()) per_element += in_flight * layout.gradient;
  if (layout.world_size > 1) {
    const std::int64_t buffers = layout.wire == layout.gradient ? 1 : 2;  // received, and sent if it is a copy
    per_element += std::max<std::int64_t>(1, in_flight - 1) * buffers * layout.wire;
  }
  return per_element * largest_unit_elements(config);
}

}  // namespace

std::int64_t FormulaTerms::total() const {
  return weights + gradients + optimizer + activations + communication + overhead;
}

FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t world_size) {
  const Layout layout = layout_of(recipe, world_size);
  const std::int64_t parameters = config.num_parameters();
  const auto part = [&](bool sharded) { return sharded ? (parameters + world_size - 1) / world_size : parameters; };
  FormulaTerms terms;
  const std::int64_t kept_weight = layout.shards_parameters() && layout.master > 0 ? layout.master : layout.weight;
  terms.weights = kept_weight * part(layout.shards_parameters());
  terms.gradients = layout.gradient * part(layout.shards_gradients());
  const std::int64_t master_beside = layout.shards_parameters() ? 0 : layout.master;
  terms.optimizer = (2 * layout.moment + master_beside) * part(layout.shards_optimizer());
  terms.activations = activation_bytes(recipe, config, layout.weight);
  terms.communication = communication_bytes(recipe, config, layout);
  return terms;
}

}  // namespace assay
