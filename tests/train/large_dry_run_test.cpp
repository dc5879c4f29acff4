#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "harness/memory/tracking_allocator.h"
#include "harness/train/dry_run.h"

namespace assay {
namespace {

ModelConfig llama3_8b() {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_hidden_layers = 32;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 8192;
  return config;
}

// Any rank of any world, on one core and without memory: a plan for 1024 cards takes under a second, and a slow machine
// has five.
TEST(LargeDryRun, ARankOf1024OfAnEightBillionModelTakesAMoment) {
  install_tracking_allocators();
  const ModelConfig config = llama3_8b();
  EXPECT_NEAR(static_cast<double>(config.num_parameters()), 8.03e9, 0.01e9);
  Recipe recipe;
  recipe.data.sequence_length = 4096;
  recipe.model.attention = AttentionChoice::flash;
  recipe.train.micro_batch_size = 1;
  recipe.train.gradient_accumulation_steps = 1;
  recipe.train.precision = Precision::bf16;
  recipe.train.activation_checkpointing = ActivationCheckpointing::full;
  recipe.parallel.strategy = StrategyName::fsdp;
  for (const int rank : {0, 511, 1023}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ledger = dry_run(recipe, config, rank, 1024);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << "rank " << rank << ": " << seconds.count() << " s, " << ledger->num_events() << " events\n";
    EXPECT_LT(seconds.count(), 5);
    // fp32 masters, gradients and moments of a 1024th: 16 bytes a parameter.
    const auto& kept = ledger->peak_by_category();
    std::int64_t state = 0;
    for (const auto category : {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer})
      state += kept[static_cast<std::size_t>(category)];
    EXPECT_GE(state, 16 * config.num_parameters() / 1024);
    EXPECT_LE(state, 17 * config.num_parameters() / 1024);
  }
}

}  // namespace
}  // namespace assay
