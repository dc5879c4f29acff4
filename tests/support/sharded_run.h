#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "harness/launch/rendezvous.h"
#include "harness/recipe/enum_names.h"
#include "tests/support/trainer_run.h"

namespace assay {

/// One way to train the same small model.
struct ShardedCase {
  StrategyName strategy = StrategyName::ddp;
  int world_size = 2;
  Precision precision = Precision::fp32;
  ActivationCheckpointing checkpointing = ActivationCheckpointing::none;
  std::int64_t accumulation = 1;
  std::int64_t units_in_flight = 2;
  bool reshard_after_forward = true;
  bool tied = false;
  FloatType reduce_dtype = FloatType::fp32;

  friend void PrintTo(const ShardedCase& c, std::ostream* out) {
    *out << name_of(c.strategy) << " x " << c.world_size << ", " << name_of(c.precision) << ", checkpointing "
         << name_of(c.checkpointing) << ", accumulation " << c.accumulation << ", in flight " << c.units_in_flight
         << (c.reshard_after_forward ? "" : ", no resharding") << (c.tied ? ", tied" : "") << ", reduced in "
         << name_of(c.reduce_dtype);
  }
};

/// Sizes that no world size divides: a vocabulary of 101 (E05), 3 heads, odd widths.
inline ModelConfig sharded_config(const ShardedCase& c) {
  ModelConfig config;
  config.vocab_size = 101;
  config.hidden_size = 24;
  config.intermediate_size = 53;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  config.initializer_range = 0.1;
  config.tie_word_embeddings = c.tied;
  return config;
}

inline Recipe sharded_recipe(const ShardedCase& c) {
  Recipe recipe;
  recipe.data.format = DataFormat::synthetic;
  recipe.data.sequence_length = 12;
  recipe.model.attention = AttentionChoice::flash;
  recipe.train.micro_batch_size = 1;
  recipe.train.gradient_accumulation_steps = c.accumulation;
  recipe.train.max_steps = 20;
  recipe.train.precision = c.precision;
  recipe.train.loss_scale.initial = 1024;
  recipe.train.activation_checkpointing = c.checkpointing;
  recipe.optimizer.learning_rate = 1e-2;
  recipe.optimizer.moment_dtype = c.precision == Precision::pure_bf16 ? FloatType::bf16 : FloatType::fp32;
  recipe.parallel.nproc_per_node = c.world_size;
  recipe.parallel.strategy = c.strategy;
  recipe.parallel.units_in_flight = c.units_in_flight;
  recipe.parallel.reshard_after_forward = c.reshard_after_forward;
  recipe.parallel.reduce_dtype = c.reduce_dtype;
  return recipe;
}

/// What a training left: losses and norms of each step (equal on all ranks), and every flat buffer of parameters, put
/// together from the ranks' shards.
struct Trained {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::map<std::string, at::Tensor> parameters;
};

inline Trained train_sharded(const ShardedCase& c, int num_steps) {
  Trained result;
  std::map<std::string, std::vector<at::Tensor>> shards;
  std::mutex mutex;
  run_trainers(sharded_recipe(c), sharded_config(c), c.world_size, find_free_port(), [&](TestRank rank) {
    std::vector<double> losses;
    std::vector<double> norms;
    for (int step = 0; step < num_steps; ++step) {
      const auto record = rank.trainer.step();
      losses.push_back(record.loss);
      norms.push_back(record.grad_norm);
    }
    const std::lock_guard lock(mutex);
    if (result.losses.empty()) result.losses = losses;
    EXPECT_EQ(result.losses, losses) << "ranks differ";
    result.grad_norms = norms;
    for (const auto& [name, tensor] : rank.trainer.state_tensors()) {
      if (name.rfind("parameters.", 0) != 0) continue;
      auto& parts = shards[name];
      parts.resize(static_cast<std::size_t>(c.world_size));
      parts[static_cast<std::size_t>(rank.rank)] = tensor.clone();
    }
  });
  for (const auto& [name, parts] : shards) result.parameters[name] = at::cat(parts);
  return result;
}

/// Bits, not values.
inline void expect_same_training(const Trained& mine, const Trained& theirs) {
  EXPECT_EQ(mine.losses, theirs.losses);
  EXPECT_EQ(mine.grad_norms, theirs.grad_norms);
  ASSERT_EQ(mine.parameters.size(), theirs.parameters.size());
  for (const auto& [name, tensor] : mine.parameters) {
    EXPECT_TRUE(at::equal(tensor, theirs.parameters.at(name)))
        << name << " differs by " << (tensor - theirs.parameters.at(name)).abs().max().item<double>();
  }
}

}  // namespace assay
