#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

inline std::filesystem::path data_folder() { return std::filesystem::path(ASSAY_SOURCE_DIR) / "tests" / "data"; }

/// The run that transformers and torch.optim made (tests/data/train/llama20): 20 steps of 4 micro-batches of 2 rows, a
/// warm-up of 5 steps by one of two conventions.
struct ReferenceRun {
  explicit ReferenceRun(WarmupConvention convention, int world_size) {
    folder = data_folder() / "train" / "llama20";
    values = folder / (convention == WarmupConvention::transformers ? "hf_schedule" : "plus1_schedule");
    recipe.model.path = folder.string();
    recipe.model.init = ModelInit::load;
    recipe.model.attention = AttentionChoice::flash;
    recipe.data.format = DataFormat::batches;
    recipe.data.path = {{(folder / "batches.safetensors").string(), 1}};
    recipe.data.sequence_length = 24;
    recipe.train.micro_batch_size = 2 / world_size;
    recipe.train.gradient_accumulation_steps = 4;
    recipe.train.max_steps = 20;
    recipe.train.max_grad_norm = 1;
    recipe.optimizer.learning_rate = 0.006;
    recipe.optimizer.betas = {0.9, 0.95};
    recipe.optimizer.eps = 1e-8;
    recipe.optimizer.weight_decay = 0.1;
    recipe.schedule.warmup_steps = 5;
    recipe.schedule.min_lr_ratio = 0.1;
    recipe.schedule.convention = convention;
    recipe.parallel.nproc_per_node = world_size;
    recipe.parallel.strategy = world_size > 1 ? StrategyName::ddp : StrategyName::none;
    config = load_model_config(folder);
    steps = parse_json(read_text_file(values / "steps.json"), "steps.json");
    bf16_steps = parse_json(read_text_file(values / "steps_bf16_master.json"), "steps_bf16_master.json");
  }

  std::filesystem::path folder;
  std::filesystem::path values;
  Recipe recipe;
  ModelConfig config;
  Json steps;       ///< loss, grad_norm_before_clip, lr, counted_tokens, naive_mean_of_micro_batch_means
  Json bf16_steps;  ///< the same run in bf16 with fp32 masters: loss, grad_norm_before_clip, lr
};

}  // namespace assay
