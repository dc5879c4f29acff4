#include "harness/acceptance/job_recipes.h"

#include "harness/acceptance/evaluate.h"
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
  return recipe;
}

Recipe train_recipe(const Recipe& target) {
  Recipe recipe = target;
  recipe.checkpoint.interval = checkpoint_interval_of(target);
  recipe.resume = "auto";
  return recipe;
}

std::string reduced_model_of(const Recipe& recipe) {
  const auto full = load_model_config(recipe.model.path).num_parameters();
  const auto used = load_model_config(recipe.model.path, recipe.model.config).num_parameters();
  if (used >= full) return "";
  return "model.config reduces the model from " + std::to_string(full) + " to " + std::to_string(used) + " parameters";
}

}  // namespace assay
