#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>

#include "harness/core/clock.h"
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

ModelConfig llama3_405b() {
  ModelConfig config = llama3_8b();
  config.hidden_size = 16384;
  config.intermediate_size = 53248;
  config.num_hidden_layers = 126;
  config.num_attention_heads = 128;
  return config;
}

Recipe cuda_recipe() {
  Recipe recipe;
  recipe.device = DeviceChoice::cuda;
  recipe.data.sequence_length = 8192;
  recipe.model.attention = AttentionChoice::flash;
  recipe.train.micro_batch_size = 1;
  recipe.train.gradient_accumulation_steps = 1;
  recipe.train.precision = Precision::bf16;
  recipe.parallel.strategy = StrategyName::none;
  return recipe;
}

/// The largest resident memory of this process since reset_resident_peak().
std::int64_t resident_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}
void reset_resident_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Seconds of the processor, which other processes do not lengthen: a tenth of a second on a quiet machine, and a slow
// one has three.
TEST(LargeDryRun, AnEightBillionModelOnACardTakesATenthOfASecond) {
  install_tracking_allocators();
  const ModelConfig config = llama3_8b();
  const SystemClock clock;
  dry_run(cuda_recipe(), config, 0, 1);  // operators are looked up once a process
  const double start = clock.cpu_seconds();
  const auto ledger = dry_run(cuda_recipe(), config, 0, 1);
  const double seconds = clock.cpu_seconds() - start;
  std::cout << seconds << " s, " << ledger->num_events() << " events, peak " << ledger->peak_bytes() << " bytes\n";
  EXPECT_LT(seconds, 0.3);
  EXPECT_GT(ledger->peak_bytes(), 18 * config.num_parameters());
}

TEST(LargeDryRun, ARankOf16384OfA405BillionModelTakesLittleTimeAndMemory) {
  install_tracking_allocators();
  const ModelConfig config = llama3_405b();
  EXPECT_NEAR(static_cast<double>(config.num_parameters()), 405.9e9, 0.1e9);
  Recipe recipe = cuda_recipe();
  recipe.train.activation_checkpointing = ActivationCheckpointing::full;
  recipe.parallel.strategy = StrategyName::fsdp;
  const SystemClock clock;
  reset_resident_peak();
  const std::int64_t bytes_before = resident_peak_bytes();
  const double start = clock.cpu_seconds();
  const auto ledger = dry_run(recipe, config, 16383, 16384);
  const double seconds = clock.cpu_seconds() - start;
  const std::int64_t bytes = resident_peak_bytes() - bytes_before;
  std::cout << seconds << " s, " << ledger->num_events() << " events, " << bytes / 1e6 << " MB\n";
  EXPECT_LT(seconds, 2);
  EXPECT_LT(bytes, 150 << 20);
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
