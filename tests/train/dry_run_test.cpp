#include "harness/train/dry_run.h"

#include <gtest/gtest.h>

#include "tests/support/dry_run_check.h"

namespace assay {
namespace {

struct Case {
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
  std::int64_t batch, length, accumulation;
  int world_size;
  std::int64_t threads;
  std::int64_t chunk;
  bool tied;
  double max_grad_norm = 1;

  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.layers << " layers, hidden " << c.hidden << ", " << c.batch << " x " << c.length << " x "
         << c.accumulation << ", " << c.world_size << " ranks, " << c.threads << " threads";
  }
};

ModelConfig config_of(const Case& c) {
  ModelConfig config;
  config.vocab_size = c.vocab;
  config.hidden_size = c.hidden;
  config.intermediate_size = c.intermediate;
  config.num_hidden_layers = c.layers;
  config.num_attention_heads = c.heads;
  config.num_key_value_heads = c.kv_heads;
  config.head_dim = c.head_dim;
  config.tie_word_embeddings = c.tied;
  return config;
}

Recipe recipe_of(const Case& c) {
  Recipe recipe;
  recipe.data.format = DataFormat::synthetic;
  recipe.data.sequence_length = c.length;
  recipe.model.attention = AttentionChoice::flash;
  recipe.train.micro_batch_size = c.batch;
  recipe.train.gradient_accumulation_steps = c.accumulation;
  recipe.train.num_threads = c.threads;
  recipe.train.loss_chunk_tokens = c.chunk;
  recipe.train.max_grad_norm = c.max_grad_norm;
  recipe.train.max_steps = 3;
  recipe.parallel.nproc_per_node = c.world_size;
  recipe.parallel.strategy = c.world_size > 1 ? StrategyName::ddp : StrategyName::none;
  return recipe;
}

class DryRunEqualsRun : public ::testing::TestWithParam<Case> {};

TEST_P(DryRunEqualsRun, InEveryAllocationEventOfThreeSteps) {
  const Case c = GetParam();
  expect_dry_run_equals_run(recipe_of(c), config_of(c), c.world_size);
}

// hidden, intermediate, layers, heads, kv heads, head size, vocabulary; rows, length, accumulation, ranks, threads,
// chunk
const Case kCases[] = {
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 1, 1, 1, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 3, 1, 1, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 1, 2, 1, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 3, 2, 1, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 1, 1, 2, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 3, 1, 2, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 1, 2, 2, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 3, 2, 2, 1024, false},
    {64, 128, 1, 4, 4, 16, 256, 1, 128, 1, 1, 1, 1024, true},
    {64, 128, 1, 4, 1, 16, 256, 3, 96, 3, 2, 1, 1024, true},
    {128, 352, 2, 4, 2, 32, 256, 4, 128, 2, 2, 1, 1024, false},
    {128, 352, 2, 4, 2, 32, 256, 4, 128, 1, 1, 2, 64, false},
    {96, 200, 2, 3, 3, 32, 257, 2, 33, 1, 1, 1, 7, false},
    {96, 200, 2, 3, 1, 32, 257, 2, 33, 3, 2, 2, 7, false},
    {64, 160, 2, 2, 1, 32, 300, 1, 256, 1, 1, 1, 100, true},
    {64, 160, 2, 2, 1, 32, 300, 1, 256, 3, 2, 2, 100, true},
    {64, 160, 1, 2, 2, 32, 300, 1, 768, 1, 1, 1, 512, false},
    {64, 160, 1, 2, 2, 32, 300, 1, 800, 3, 1, 2, 512, false},
    {64, 160, 1, 2, 1, 64, 300, 2, 192, 1, 2, 2, 512, false},
    {64, 160, 1, 2, 1, 64, 300, 2, 193, 3, 1, 1, 512, false},
    {32, 64, 3, 2, 2, 8, 50, 1, 8, 1, 1, 1, 1024, false},
    {32, 64, 3, 2, 2, 8, 50, 1, 8, 3, 2, 2, 1024, true},
    {32, 64, 3, 2, 2, 8, 50, 5, 1, 1, 1, 2, 1024, true},
    {32, 48, 1, 1, 1, 32, 40, 1, 2, 3, 2, 1, 1, false},
    {256, 704, 2, 4, 4, 64, 1024, 4, 128, 1, 1, 1, 1024, false},
    {256, 704, 2, 4, 4, 64, 1024, 4, 128, 3, 2, 2, 256, false},
    {256, 704, 1, 8, 2, 32, 1024, 2, 512, 1, 1, 2, 1024, true},
    {256, 704, 1, 8, 2, 32, 1024, 2, 512, 3, 2, 1, 1024, true},
    {512, 1408, 1, 8, 4, 64, 4096, 4, 128, 1, 1, 2, 1024, false},
    {512, 1408, 1, 8, 4, 64, 4096, 4, 128, 2, 2, 1, 333, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 3, 3, 1, 1024, false},
    {64, 128, 2, 4, 2, 16, 101, 2, 16, 1, 4, 1, 1024, true, 0},
    // Logits are most of the memory: all at once, and in chunks.
    {32, 64, 1, 2, 2, 16, 50000, 1, 512, 1, 1, 1, 512, false},
    {32, 64, 1, 2, 2, 16, 50000, 1, 512, 1, 1, 1, 64, false},
};

INSTANTIATE_TEST_SUITE_P(Shapes, DryRunEqualsRun, ::testing::ValuesIn(kCases));

}  // namespace
}  // namespace assay
