#include "harness/acceptance/job_recipes.h"

#include <algorithm>

#include "harness/acceptance/evaluate.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "model/model_config.h"

namespace assay {

Recipe single_recipe(const Recipe& target) {
  constexpr std::int64_t kSteps = 2;
  Recipe recipe = target;
  recipe.parallel.nproc_per_node = 1;
  recipe.parallel.strategy = StrategyName::none;
  recipe.train.max_steps = kSteps;
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
  require_path("model.path", recipe.model.path);
  require_trained(load_model_config(recipe.model.path, recipe.model.config));
  if (recipe.data.format == DataFormat::synthetic) return;
  for (const auto& entry : recipe.data.path) require_path("data.path", entry.path);
  if (recipe.data.eval_path) require_path("data.eval_path", *recipe.data.eval_path);
}

std::string reduced_model_of(const Recipe& recipe) {
  const auto full = load_model_config(recipe.model.path).num_parameters();
  const auto used = load_model_config(recipe.model.path, recipe.model.config).num_parameters();
  if (used >= full) return "";
  return "model.config reduces the model from " + std::to_string(full) + " to " + std::to_string(used) + " parameters";
}

}  // namespace assay
