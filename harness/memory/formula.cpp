#include "harness/memory/formula.h"

#include <algorithm>

namespace assay {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kInt64 = 8;

std::int64_t block_elements_per_token(const ModelConfig& config) {
  const std::int64_t queries = config.num_attention_heads * config.head_dim;
  const std::int64_t keys = config.num_key_value_heads * config.head_dim;
  return 4 * config.hidden_size + 2 * queries + 2 * keys + 3 * config.intermediate_size + config.num_attention_heads +
         2;
}

std::int64_t activation_bytes(const Recipe& recipe, const ModelConfig& config) {
  const std::int64_t tokens = recipe.train.micro_batch_size * recipe.data.sequence_length;
  const std::int64_t chunk = std::min(tokens, recipe.train.loss_chunk_tokens);
  const std::int64_t blocks = config.num_hidden_layers * tokens * block_elements_per_token(config);
  // The last block's output, its norm and the gradient of that; logits and their log-softmax for one chunk.
  const std::int64_t head = tokens * (3 * config.hidden_size + 1) + 2 * chunk * config.vocab_size;
  const std::int64_t batches = recipe.train.gradient_accumulation_steps * tokens * (2 * kInt64 + kFp32);
  return (blocks + head) * kFp32 + batches;
}

std::int64_t largest_unit_elements(const ModelConfig& config) {
  const std::int64_t embedding = config.vocab_size * config.hidden_size;
  const std::int64_t block =
      config.hidden_size * config.head_dim * 2 * (config.num_attention_heads + config.num_key_value_heads) +
      3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size;
  const std::int64_t head = config.hidden_size + (config.tie_word_embeddings ? 0 : embedding);
  return std::max({embedding, block, head});
}

}  // namespace

std::int64_t FormulaTerms::total() const {
  return weights + gradients + optimizer + std::max(activations, communication) + overhead;
}

FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config) {
  const std::int64_t parameters = config.num_parameters();
  FormulaTerms terms;
  terms.weights = kFp32 * parameters;
  terms.gradients = kFp32 * parameters;
  terms.optimizer = 2 * kFp32 * parameters;
  terms.activations = activation_bytes(recipe, config);
  const bool reduces = recipe.parallel.strategy == StrategyName::ddp;
  terms.communication = reduces ? kFp32 * largest_unit_elements(config) : 0;
  return terms;
}

}  // namespace assay
