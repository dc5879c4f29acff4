#pragma once

#include <filesystem>
#include <string>

#include "harness/memory/formula.h"

namespace assay {

inline ModelConfig zoo_model(const std::string& name) {
  return load_model_config(std::filesystem::path(ASSAY_SOURCE_DIR) / "recipes/models" / name);
}

/// One micro-step of `tokens` tokens in one row, flash attention, no checkpointing, on one GPU.
inline Recipe formula_recipe(Mode mode, Precision precision, std::int64_t tokens = 4096) {
  Recipe recipe;
  recipe.mode = mode;
  recipe.device = DeviceChoice::cuda;
  recipe.model.attention = AttentionChoice::flash;
  recipe.data.sequence_length = tokens;
  recipe.train.precision = precision;
  if (precision == Precision::pure_bf16) recipe.optimizer.moment_dtype = FloatType::bf16;
  recipe.train.micro_batch_size = 1;
  recipe.train.gradient_accumulation_steps = 1;
  recipe.parallel.strategy = StrategyName::none;
  if (mode == Mode::qlora) recipe.quantization.type = QuantizationType::nf4;
  return recipe;
}

}  // namespace assay
