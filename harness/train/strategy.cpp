#include "harness/train/strategy.h"

#include "harness/core/error.h"
#include "harness/train/random.h"

namespace assay {
namespace {

c10::ScalarType dtype_of(FloatType type) {
  return type == FloatType::bf16 ? c10::ScalarType::BFloat16 : c10::ScalarType::Float;
}

void set_dtypes(ShardingOptions& options, Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return;
    case Precision::bf16:
      options.compute_dtype = c10::ScalarType::BFloat16;
      return;
    case Precision::fp16:
      options.compute_dtype = c10::ScalarType::Half;
      return;
    case Precision::pure_bf16:
      options.compute_dtype = options.master_dtype = options.gradient_dtype = c10::ScalarType::BFloat16;
      options.reduce_dtype = c10::ScalarType::BFloat16;  // what is summed has no more bits than that
      return;
  }
}

BlockCheckpointing block_checkpointing(ActivationCheckpointing choice) {
  switch (choice) {
    case ActivationCheckpointing::none:
      return BlockCheckpointing::none;
    case ActivationCheckpointing::selective:
      return BlockCheckpointing::selective;
    case ActivationCheckpointing::full:
      return BlockCheckpointing::full;
  }
  return BlockCheckpointing::none;
}

ops::Kernels kernels_of(const Recipe& recipe) {
  const bool efficient = recipe.model.attention == AttentionChoice::efficient;
  ASSAY_CHECK(efficient || recipe.model.attention == AttentionChoice::flash);
  if (recipe.device == DeviceChoice::cuda) {
    return {efficient ? ops::AttentionKernel::efficient_cuda : ops::AttentionKernel::flash_cuda,
            /*products_in_fp32=*/false, /*fused_norm=*/true};
  }
  ASSAY_CHECK(!efficient);
  return {};
}

}  // namespace

ShardingOptions sharding_options(const Recipe& recipe) {
  const StrategyName strategy = recipe.parallel.strategy.value_or(StrategyName::none);
  ShardingOptions options;
  options.shard_parameters = strategy == StrategyName::fsdp;
  options.shard_gradients = options.shard_parameters || strategy == StrategyName::zero2;
  options.shard_optimizer = options.shard_gradients || strategy == StrategyName::zero1;
  options.reshard_after_forward = recipe.parallel.reshard_after_forward;
  options.units_in_flight = static_cast<int>(recipe.parallel.units_in_flight);
  options.reduce_dtype = dtype_of(recipe.parallel.reduce_dtype);
  set_dtypes(options, recipe.train.precision);
  return options;
}

AdamWOptions adamw_options(const Recipe& recipe) {
  const auto& options = recipe.optimizer;
  return {options.betas[0],
          options.betas[1],
          options.eps,
          options.weight_decay,
          dtype_of(options.moment_dtype.value_or(FloatType::fp32)),
          random_stream(recipe.seed, -1)};
}

TransformerOptions transformer_options(const Recipe& recipe) {
  TransformerOptions options;
  options.kernels = kernels_of(recipe);
  options.sequence_length = recipe.data.sequence_length;
  options.loss_chunk_tokens = recipe.train.loss_chunk_tokens;
  options.checkpointing = block_checkpointing(recipe.train.activation_checkpointing);
  return options;
}

}  // namespace assay
