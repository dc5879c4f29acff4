#include <gtest/gtest.h>

#include <memory>

#include "harness/train/dry_run.h"
#include "tests/support/sharded_run.h"

namespace assay {
namespace {

/// Bytes a parameter of what a rank keeps, by category: `whole` of every parameter and `sharded` of its part.
struct Bytes {
  double whole = 0;
  double sharded = 0;
};
struct Table {
  Bytes parameters, gradients, optimizer;
};

// The table of the design: parameters + gradients + (masters) + moments.
Table table_of(StrategyName strategy, Precision precision, double moments) {
  const bool fp32 = precision == Precision::fp32;
  const bool pure = precision == Precision::pure_bf16;
  const double weight = fp32 ? 4 : 2;  // as the network reads it
  const double gradient = pure ? 2 : 4;
  const double master = fp32 || pure ? 0 : 4;  // beside it
  switch (strategy) {
    case StrategyName::none:
    case StrategyName::ddp:
      return {{weight, 0}, {gradient, 0}, {master + moments, 0}};
    case StrategyName::zero1:
      return {{weight, 0}, {gradient, 0}, {0, master + moments}};
    case StrategyName::zero2:
      return {{weight, 0}, {0, gradient}, {0, master + moments}};
    case StrategyName::fsdp:
      return {{0, pure ? 2.0 : 4.0}, {0, gradient}, {0, moments}};  // the master is the parameter
  }
  return {};
}

// At most so many bytes more: 15 elements after every parameter and 16 more for each rank at a unit's end, and every
// tensor rounded up to a block.
double padding_of(const Bytes& bytes, const ModelConfig& config, int world_size) {
  const auto num_units = static_cast<double>(config.num_hidden_layers + 2);
  const double num_parameters = 9.0 * static_cast<double>(config.num_hidden_layers) + 3;
  const double elements = 15 * num_parameters + 16 * world_size * num_units;
  constexpr double kTensorsOfAUnit = 3;
  return elements * (bytes.whole + bytes.sharded / world_size) + kTensorsOfAUnit * kBlockBytes * num_units +
         kBlockBytes;
}

void expect_bytes(std::int64_t measured, const Bytes& bytes, const ModelConfig& config, int world_size) {
  const auto count = static_cast<double>(config.num_parameters());
  const double least = count * (bytes.whole + bytes.sharded / world_size);
  EXPECT_GE(static_cast<double>(measured), least);
  EXPECT_LE(static_cast<double>(measured), least + padding_of(bytes, config, world_size));
}

// Wide enough that padding is small beside a parameter's byte.
ModelConfig wide_config(const ShardedCase& c) {
  ModelConfig config = sharded_config(c);
  config.hidden_size = 48;
  config.intermediate_size = 211;
  config.num_attention_heads = 6;
  return config;
}

void expect_table(const ShardedCase& c, FloatType moments) {
  SCOPED_TRACE(::testing::PrintToString(c) + ", moments " + std::string(name_of(moments)));
  const ModelConfig config = wide_config(c);
  auto recipe = sharded_recipe(c);
  recipe.optimizer.moment_dtype = moments;
  install_tracking_allocators();
  const Table table = table_of(c.strategy, c.precision, moments == FloatType::fp32 ? 8 : 4);
  for (int rank = 0; rank < c.world_size; ++rank) {
    const ManualClock clock;
    const auto communicator = make_fake_communicator(rank, c.world_size, clock);  // memory is that of a true one
    const auto rows = make_row_source(recipe, c.world_size, config.vocab_size);
    const auto ledger = std::make_shared<MemoryLedger>();
    const LedgerScope scope(ledger);
    const auto device = make_cpu_device(1);
    Trainer trainer(recipe, config, {*device, *communicator, clock, *ledger, *rows, {}});
    trainer.initialize_parameters();
    const auto kept = ledger->by_category();
    const auto of = [&](MemoryCategory category) { return kept[static_cast<std::size_t>(category)]; };
    expect_bytes(of(MemoryCategory::parameters), table.parameters, config, c.world_size);
    expect_bytes(of(MemoryCategory::gradients), table.gradients, config, c.world_size);
    expect_bytes(of(MemoryCategory::optimizer), table.optimizer, config, c.world_size);
    EXPECT_EQ(of(MemoryCategory::communication), 0);
    // Nothing is added by steps: gathered weights and whole gradients are gone again.
    trainer.step();
    trainer.step();
    EXPECT_EQ(ledger->by_category(), kept);
  }
}

TEST(StateBytes, AreThoseOfTheTable) {
  for (const int world_size : {1, 2, 3, 4}) {
    for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
      for (const auto strategy :
           {StrategyName::none, StrategyName::ddp, StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
        if (strategy == StrategyName::none && world_size > 1) continue;
        ShardedCase c{strategy, world_size, precision, ActivationCheckpointing::none, 2};
        c.tied = world_size == 2;
        expect_table(c, precision == Precision::pure_bf16 ? FloatType::bf16 : FloatType::fp32);
      }
    }
  }
}

// The same table holds on a card: of a rank in its place, by the dry run.
TEST(StateBytes, AreThoseOfTheTableOnCuda) {
  install_tracking_allocators();
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::pure_bf16}) {
    for (const auto strategy :
         {StrategyName::none, StrategyName::ddp, StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
      const int world_size = strategy == StrategyName::none ? 1 : 4;
      const ShardedCase c{strategy, world_size, precision};
      SCOPED_TRACE(::testing::PrintToString(c));
      const ModelConfig config = wide_config(c);
      Recipe recipe = sharded_recipe(c);
      recipe.device = DeviceChoice::cuda;
      if (precision == Precision::fp32) recipe.model.attention = AttentionChoice::efficient;
      const Table table = table_of(strategy, precision, precision == Precision::pure_bf16 ? 4 : 8);
      for (const int rank : {0, world_size - 1}) {
        const auto kept = dry_run(recipe, config, rank, world_size)->peak_by_category();
        const auto of = [&](MemoryCategory category) { return kept[static_cast<std::size_t>(category)]; };
        expect_bytes(of(MemoryCategory::parameters), table.parameters, config, world_size);
        expect_bytes(of(MemoryCategory::gradients), table.gradients, config, world_size);
        expect_bytes(of(MemoryCategory::optimizer), table.optimizer, config, world_size);
      }
    }
  }
}

// C13: the moments' dtype is a choice of its own.
TEST(StateBytes, MomentsHaveTheDtypeThatWasAskedFor) {
  for (const auto strategy : {StrategyName::ddp, StrategyName::zero1, StrategyName::fsdp}) {
    expect_table({strategy, 2, Precision::pure_bf16}, FloatType::fp32);
    expect_table({strategy, 2, Precision::bf16}, FloatType::bf16);
  }
}

}  // namespace
}  // namespace assay
