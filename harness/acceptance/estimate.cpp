#include "harness/acceptance/estimate.h"

#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/memory/formula.h"
#include "harness/recipe/enum_names.h"
#include "model/model_config.h"

namespace assay {

Json make_estimate(const Recipe& recipe) {
  const SystemClock clock;
  const double started = clock.wall_seconds();
  const auto terms =
      formula_bytes(recipe, load_model_config(recipe.model.path, recipe.model.config), world_size_of(recipe));
  Json estimate;
  estimate["formula"] = {{"weights", terms.weights},
                         {"gradients", terms.gradients},
                         {"optimizer", terms.optimizer},
                         {"activations", terms.activations},
                         {"communication", terms.communication},
                         {"overhead", terms.overhead},
                         {"total", terms.total()}};
  std::vector<Recipe> recipes{recipe, single_recipe(recipe)};
  const bool checkpointing = recipe.train.activation_checkpointing != ActivationCheckpointing::none;
  if (checkpointing) {
    recipes.push_back(recipe);
    recipes.back().train.activation_checkpointing = ActivationCheckpointing::none;
  }
  const auto outcome = run_dry_run(recipes);
  const bool failed = !outcome.message.empty();
  if (failed && exit_code_of(outcome.error_kind) == exit_usage) throw Error(outcome.error_kind, outcome.message);
  estimate["dry_run"] = failed ? Json() : outcome.rows[0];
  estimate["single"] = failed ? Json() : outcome.rows[1];
  estimate["without_checkpointing"] = failed || !checkpointing ? Json() : outcome.rows[2];
  estimate["error"] = nullptr;
  if (failed) estimate["error"] = {{"error", name_of(outcome.error_kind)}, {"message", outcome.message}};
  estimate["seconds"] = clock.wall_seconds() - started;
  return estimate;
}

Json checkpointing_estimate(const Recipe& recipe, const Json& estimate) {
  Json json{{"mode", name_of(recipe.train.activation_checkpointing)}};
  const auto with = number_in(member_of(estimate, "dry_run"), "peak_allocated_bytes");
  const auto without = number_in(member_of(estimate, "without_checkpointing"), "peak_allocated_bytes");
  json["peak_bytes_without"] = nullptr;
  json["saved_bytes"] = nullptr;
  if (with && without) {
    json["peak_bytes_without"] = static_cast<std::int64_t>(*without);
    json["saved_bytes"] = static_cast<std::int64_t>(*without - *with);
  } else {
    const bool off = recipe.train.activation_checkpointing == ActivationCheckpointing::none;
    const char* reason = off ? "train.activation_checkpointing is none" : "the dry run failed";
    json["peak_bytes_without_reason"] = reason;
    json["saved_bytes_reason"] = reason;
  }
  return json;
}

Json estimate_report(const Recipe& recipe, const Json& estimate) {
  const Json* dry_run = member_of(estimate, "dry_run");
  const auto peak = number_in(dry_run, "peak_allocated_bytes");
  auto of_dry_run = [&](const char* key) { return dry_run != nullptr ? dry_run->value(key, Json()) : Json(); };
  Json report;
  for (const char* key : {"parameters", "trainable_parameters", "world_size"}) report[key] = of_dry_run(key);
  report["formula"] = estimate["formula"];
  report["dry_run"] = {{"peak_allocated_bytes", of_dry_run("peak_allocated_bytes")},
                       {"peak_reserved_bytes", nullptr},
                       {"peak_reserved_bytes_reason", "the allocator model is not built yet"},
                       {"by_category", of_dry_run("by_category")},
                       {"by_phase", of_dry_run("by_phase")}};
  if (!peak) report["dry_run"]["reason"] = text_in(member_of(estimate, "error"), "message");
  report["device_memory_bytes"] = nullptr;
  report["fits"] = nullptr;
  report["headroom_bytes"] = nullptr;
  if (recipe.device_memory_bytes) report["device_memory_bytes"] = *recipe.device_memory_bytes;
  if (recipe.device_memory_bytes && peak) {
    const auto headroom = *recipe.device_memory_bytes - static_cast<std::int64_t>(*peak);
    report["fits"] = headroom >= 0;
    report["headroom_bytes"] = headroom;
  } else {
    const char* reason = peak ? "device_memory is not stated" : "the dry run failed";
    report["fits_reason"] = reason;
    report["headroom_bytes_reason"] = reason;
    if (!recipe.device_memory_bytes) report["device_memory_bytes_reason"] = "not stated in the recipe";
  }
  report["activation_checkpointing"] = checkpointing_estimate(recipe, estimate);
  report["remedies"] = Json::array();
  report["seconds"] = estimate["seconds"];
  return report;
}

}  // namespace assay
