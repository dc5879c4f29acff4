// The dry run for a CUDA card, held against closed forms.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "harness/device/cuda_scratch.h"
#include "harness/memory/overhead.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/train/dry_run.h"
#include "harness/train/strategy.h"
#include "tests/support/small_model.h"

namespace assay {
namespace {

constexpr std::int64_t kLength = 128;
constexpr std::int64_t kRows = 2;

Recipe cuda_recipe(Precision precision, ActivationCheckpointing checkpointing = ActivationCheckpointing::none) {
  Recipe recipe;
  recipe.device = DeviceChoice::cuda;
  recipe.data.format = DataFormat::synthetic;
  recipe.data.sequence_length = kLength;
  recipe.model.attention = precision == Precision::fp32 ? AttentionChoice::efficient : AttentionChoice::flash;
  recipe.train.micro_batch_size = kRows;
  recipe.train.gradient_accumulation_steps = 1;
  recipe.train.precision = precision;
  recipe.train.activation_checkpointing = checkpointing;
  recipe.train.max_steps = 3;
  recipe.optimizer.moment_dtype = precision == Precision::pure_bf16 ? FloatType::bf16 : FloatType::fp32;
  recipe.parallel.strategy = StrategyName::none;
  return recipe;
}

ModelConfig model_of(std::int64_t num_layers) {
  ModelConfig config = small_model_config();
  config.num_hidden_layers = num_layers;
  return config;
}

// The formula's table and the dry run's are of two halves of the program: they must say the same.
TEST(CudaDryRun, WorkspacesAreThoseOfTheFormula) {
  for (const int capability : {80, 90}) {
    EXPECT_EQ(cuda_overhead({.compute_capability = capability}).workspaces,
              2 * cublas_workspace_bytes(cuda_card(capability)));
  }
}

std::vector<AllocationEvent> events_of(const Recipe& recipe, const ModelConfig& config, int rank, int world_size) {
  install_tracking_allocators();
  return dry_run(recipe, config, rank, world_size, 3, /*record_events=*/true)->events();
}

// What the first forward phase leaves for backward, as asked for.
std::int64_t kept_by_forward(const Recipe& recipe, std::int64_t num_layers) {
  std::int64_t bytes = 0;
  for (const auto& event : events_of(recipe, model_of(num_layers), 0, 1)) {
    if (event.phase == Phase::backward) break;
    if (event.phase == Phase::forward && event.category == MemoryCategory::activations) bytes += event.bytes;
  }
  return bytes;
}

// Bytes a token that a block keeps, by the closed formula: in elements its input, both normed inputs and the middle sum
// (4 E), query and attention output (2 H D), key and value (2 K D), gate, up and their product (3 F); in fp32 a root
// for each norm and a sum for each head. Checkpointed selectively its products and its input alone, in full its input.
std::int64_t block_bytes(const ModelConfig& c, ActivationCheckpointing checkpointing, std::int64_t element) {
  const std::int64_t queries = c.num_attention_heads * c.head_dim;
  const std::int64_t keys = c.num_key_value_heads * c.head_dim;
  switch (checkpointing) {
    case ActivationCheckpointing::none:
      return (4 * c.hidden_size + 2 * queries + 2 * keys + 3 * c.intermediate_size) * element +
             (c.num_attention_heads + 2) * 4;
    case ActivationCheckpointing::selective:
      return (2 * c.hidden_size + 2 * queries + 2 * keys + 2 * c.intermediate_size) * element +
             c.num_attention_heads * 4;
    case ActivationCheckpointing::full:
      return c.hidden_size * element;
  }
  return 0;
}

TEST(CudaDryRun, ABlockKeepsWhatTheClosedFormulaSays) {
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
    for (const auto checkpointing :
         {ActivationCheckpointing::none, ActivationCheckpointing::selective, ActivationCheckpointing::full}) {
      const Recipe recipe = cuda_recipe(precision, checkpointing);
      const std::int64_t of_a_block = kept_by_forward(recipe, 3) - kept_by_forward(recipe, 2);
      const std::int64_t element = precision == Precision::fp32 ? 4 : 2;
      const std::int64_t expected = kRows * kLength * block_bytes(model_of(2), checkpointing, element);
      // Attention keeps its random state too: at most three numbers.
      EXPECT_GE(of_a_block, expected);
      EXPECT_LE(of_a_block, expected + 3 * 8);
    }
  }
}

// A CPU copies every operand of a product to fp32, the largest of them the head's weight.
TEST(CudaDryRun, OperandsAreNotCopiedToFp32) {
  ModelConfig config = model_of(2);
  config.vocab_size = 20011;
  const std::int64_t copy_bytes = config.vocab_size * config.hidden_size * 4;
  for (const auto precision : {Precision::bf16, Precision::fp16}) {
    Recipe recipe = cuda_recipe(precision);
    recipe.train.loss_chunk_tokens = 1;
    const auto num_copies = [&] {
      const auto events = events_of(recipe, config, 0, 1);
      return std::count_if(events.begin(), events.end(), [&](const AllocationEvent& event) {
        return event.phase == Phase::forward && event.bytes == copy_bytes;
      });
    };
    EXPECT_EQ(num_copies(), 0);
    recipe.device = DeviceChoice::cpu;
    EXPECT_EQ(num_copies(), 3) << "one a step";
  }
}

TEST(CudaDryRun, AttentionIsTheOneOfTheRecipe) {
  const auto used = [](const Recipe& recipe) { return transformer_options(recipe).kernels; };
  EXPECT_EQ(used(cuda_recipe(Precision::fp32)).attention, ops::AttentionKernel::efficient_cuda);
  EXPECT_EQ(used(cuda_recipe(Precision::bf16)).attention, ops::AttentionKernel::flash_cuda);
  EXPECT_FALSE(used(cuda_recipe(Precision::bf16)).products_in_fp32);
  Recipe cpu = cuda_recipe(Precision::bf16);
  cpu.device = DeviceChoice::cpu;
  EXPECT_EQ(used(cpu).attention, ops::AttentionKernel::flash_cpu);
  EXPECT_TRUE(used(cpu).products_in_fp32);
}

// A card has no scratch for each of the host's threads; a CPU has.
TEST(CudaDryRun, ThreadsOfTheHostDoNotMatter) {
  for (const auto precision : {Precision::fp32, Precision::bf16}) {
    Recipe one = cuda_recipe(precision);
    Recipe four = one;
    four.train.num_threads = 4;
    EXPECT_EQ(events_of(one, model_of(2), 0, 1), events_of(four, model_of(2), 0, 1));
    for (Recipe* recipe : {&one, &four}) {
      recipe->device = DeviceChoice::cpu;
      recipe->model.attention = AttentionChoice::flash;
    }
    EXPECT_NE(events_of(one, model_of(2), 0, 1), events_of(four, model_of(2), 0, 1));
  }
}

TEST(CudaDryRun, EveryStepIsLikeTheSecond) {
  for (const auto strategy : {StrategyName::ddp, StrategyName::fsdp}) {
    for (const auto precision : {Precision::fp32, Precision::bf16}) {
      Recipe recipe = cuda_recipe(precision);
      recipe.parallel.strategy = strategy;
      const auto events = events_of(recipe, model_of(2), 1, 4);
      // Each step ends where the next forward begins.
      std::vector<std::vector<AllocationEvent>> steps;
      Phase before = Phase::load;
      for (const auto& event : events) {
        if (event.phase == Phase::forward && before != Phase::forward) steps.emplace_back();
        if (!steps.empty()) steps.back().push_back(event);
        before = event.phase;
      }
      ASSERT_EQ(steps.size(), 3U);
      EXPECT_EQ(steps[1], steps[2]);
      const auto sum = [](const auto& step) {
        return std::accumulate(step.begin(), step.end(), std::int64_t{0},
                               [](std::int64_t total, const AllocationEvent& event) { return total + event.bytes; });
      };
      EXPECT_EQ(sum(steps[1]), 0) << "a step gives back what it takes";
    }
  }
}

// NCCL sums in place: a gradient that travels in its own dtype needs nothing beside it, one in another dtype a copy. A
// rank on a CPU receives the parts of all ranks in a buffer as well.
TEST(CudaDryRun, ReductionsTakeNoBuffer) {
  const auto largest = [](Recipe recipe) {
    std::int64_t bytes = 0;
    for (const auto& event : events_of(recipe, model_of(2), 1, 4)) {
      if (event.category == MemoryCategory::communication) bytes = std::max(bytes, event.bytes);
    }
    return bytes;
  };
  const std::int64_t block = 64 * 16 * 2 * (4 + 2) + 3 * 64 * 160 + 2 * 64;  // the largest unit
  const std::int64_t padding = 9 * 16 + 4 * 16;
  Recipe recipe = cuda_recipe(Precision::bf16);
  recipe.parallel.strategy = StrategyName::ddp;
  constexpr std::int64_t kSummary = 1024;
  EXPECT_LT(largest(recipe), kSummary);
  recipe.parallel.reduce_dtype = FloatType::bf16;
  EXPECT_GE(largest(recipe), 2 * block);
  EXPECT_LE(largest(recipe), 2 * (block + padding));
  recipe.parallel.reduce_dtype = FloatType::fp32;
  recipe.device = DeviceChoice::cpu;
  EXPECT_GE(largest(recipe), 4 * block);
  EXPECT_LE(largest(recipe), 4 * (block + padding));
}

// fsdp holds, of `units_in_flight` units at once, the gathered weights and the gradients that are summed.
TEST(CudaDryRun, ShardedUnitsAreHeldAsLongAsTheyAreInFlight) {
  for (const std::int64_t in_flight : {1, 2, 3}) {
    Recipe recipe = cuda_recipe(Precision::bf16);
    recipe.parallel.strategy = StrategyName::fsdp;
    recipe.parallel.units_in_flight = in_flight;
    install_tracking_allocators();
    std::int64_t held = 0;
    std::int64_t most = 0;
    for (const auto& event : events_of(recipe, model_of(6), 1, 4)) {
      if (event.category != MemoryCategory::communication) continue;
      held += event.bytes;
      most = std::max(most, held);
    }
    const std::int64_t head = 300 * 64 + 64;
    const std::int64_t block = 64 * 16 * 2 * (4 + 2) + 3 * 64 * 160 + 2 * 64;
    const std::int64_t unit = std::max(head, block) + 9 * 16 + 64;
    EXPECT_LE(most, in_flight * unit * (2 + 4) + 1024) << in_flight;
    EXPECT_GE(most, in_flight * block * 2 + block * 4) << in_flight;
  }
}

}  // namespace
}  // namespace assay
