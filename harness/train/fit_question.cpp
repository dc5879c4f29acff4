#include "harness/train/fit_question.h"

#include "harness/recipe/load_recipe.h"

namespace assay {

FitQuestion::FitQuestion(const Job& job) : recipe(job.recipe), key(job.options.at("key").get<std::string>()) {
  const auto number = [&](const char* name) { return job.options.at(name).get<std::int64_t>(); };
  grid = {number("step"), number("low"), number("high")};
  start = number("start");
  num_steps = number("num_steps");
}

Recipe FitQuestion::recipe_at(std::int64_t value) const {
  return with_overrides(recipe, {key + "=" + std::to_string(value)});
}

}  // namespace assay
