#include "harness/acceptance/job_recipes.h"

#include <algorithm>
#include <cmath>

#include "harness/acceptance/evaluate.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "model/model_config.h"

namespace assay {
namespace {

/// Two that update the parameters: in fp16 each step before them may be one that overflows and halves the loss scale.
std::int64_t single_steps(const Recipe& target) {
  constexpr std::int64_t kUpdates = 2;
  if (target.train.precision != Precision::fp16) return kUpdates;
  const auto& scale = target.train.loss_scale;
  return kUpdates + static_cast<std::int64_t>(std::ceil(std::log2(scale.initial / scale.minimum)));
}

}  // namespace

Recipe single_recipe(const Recipe& target) {
  Recipe recipe = target;
  recipe.parallel.nproc_per_node = 1;
  recipe.parallel.strategy = StrategyName::none;
  recipe.train.max_steps = single_steps(target);
  recipe.train.epochs.reset();
  recipe.train.eval_interval = 0;
  recipe.train.global_batch_size = target.train.micro_batch_size * target.train.gradient_accumulation_steps;
  recipe.checkpoint.interval = 0;
  recipe.checkpoint.minutes.reset();
  recipe.checkpoint.save_at_end = true;
  recipe.resume = "never";
  const bool has_rows_of_all_ranks = target.data.format == DataFormat::batches && world_size_of(target) > 1;
  if (has_rows_of_all_ranks) {
    recipe.data.format = DataFormat::synthetic;
    recipe.data.path.clear();
  } else if (target.data.format == DataFormat::batches) {  // which may hold no more steps than the target makes
    recipe.train.max_steps = std::min(recipe.train.max_steps, target.train.max_steps);
  }
  return recipe;
}

Recipe train_recipe(const Recipe& target) {
  Recipe recipe = target;
  recipe.checkpoint.interval = checkpoint_interval_of(target);
  recipe.resume = "auto";
  return recipe;
}

Recipe twin_recipe(const Recipe& target) {
  Recipe recipe = train_recipe(target);
  recipe.resume = "never";
  return recipe;
}

void check_can_be_accepted(const Recipe& recipe) {
  const auto& stages = recipe.accept.stages;
  const bool trains = std::find(stages.begin(), stages.end(), "train") != stages.end();
  if (trains && recipe.train.max_steps < 2) {
    throw Error(ErrorKind::recipe, "train.max_steps is " + std::to_string(recipe.train.max_steps) +
                                       ": stage train saves, kills and resumes between two steps; write 2 or more");
  }
}

void check_inputs(const Recipe& recipe) {
  require_path("model.path", recipe.model.path);
  const auto config = load_model_config(recipe.model.path, recipe.model.config);
  require_trained(config);
  if (recipe.data.sequence_length > config.max_position_embeddings) {
    throw Error(ErrorKind::recipe, "data.sequence_length " + std::to_string(recipe.data.sequence_length) +
                                       " is above the model's max_position_embeddings " +
                                       std::to_string(config.max_position_embeddings) + " (" + recipe.model.path +
                                       "/config.json); write no more than that");
  }
  if (recipe.data.format != DataFormat::synthetic) {
    for (const auto& entry : recipe.data.path) require_path("data.path", entry.path);
  }
  if (recipe.train.eval_interval > 0) require_path("data.eval_path", recipe.data.eval_path.value_or(""));
}

std::string reduced_model_of(const Recipe& recipe) {
  const auto full = load_model_config(recipe.model.path).num_parameters();
  const auto used = load_model_config(recipe.model.path, recipe.model.config).num_parameters();
  if (used >= full) return "";
  return "model.config reduces the model from " + std::to_string(full) + " to " + std::to_string(used) + " parameters";
}

}  // namespace assay
