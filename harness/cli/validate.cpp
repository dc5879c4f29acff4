#include "harness/cli/validate.h"

#include <cstdio>

#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/core/log.h"
#include "harness/machine/inventory.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/recipe_json.h"

namespace assay {

LoadedRecipe load_from(const CommandLine& line, bool runs) {
  ResolveFacts facts;
  facts.cuda_available = has_gpu();
  facts.runs = runs;
  auto loaded = load_recipe(line.only_path("RECIPE"), line.overrides, facts);
  for (const auto& warning : loaded.warnings) log_warning(warning);
  return loaded;
}

int print_recipe(const LoadedRecipe& loaded, const CommandLine& line) {
  const auto text = line.has("json") ? dump_json_pretty(recipe_to_json(loaded.recipe)) : recipe_to_yaml(loaded);
  std::fputs(text.c_str(), stdout);
  return exit_done;
}

int run_validate(const CommandLine& line) {
  if (!line.has("keys")) return print_recipe(load_from(line, /*runs=*/false), line);
  std::fputs(recipe_key_help().c_str(), stdout);
  return exit_done;
}

}  // namespace assay
