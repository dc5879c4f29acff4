#include "harness/acceptance/estimate.h"

#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/remedies.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/memory/formula.h"
#include "harness/memory/lora_formula.h"
#include "harness/recipe/enum_names.h"
#include "model/model_config.h"

namespace assay {

std::int64_t Fit::headroom_bytes() const { return fits && num_alloc_retries > 0 ? 0 : usable_bytes - peak_bytes; }

std::optional<Fit> fit_of(const Json* dry_run) {
  const auto peak = number_in(dry_run, "peak_reserved_bytes");
  const auto usable = number_in(dry_run, "usable_bytes");
  if (!peak || !usable) return std::nullopt;
  return Fit{dry_run->value("fits", Json()) == true, static_cast<std::int64_t>(*peak),
             static_cast<std::int64_t>(*usable),
             static_cast<std::int64_t>(number_in(dry_run, "num_alloc_retries").value_or(0))};
}

namespace {

// An estimate without them is better than none.
void add_remedies(const Recipe& recipe, Json& estimate) {
  try {
    estimate["remedies"] = evaluate_remedies(recipe);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    estimate["remedies_reason"] = error.what();
  }
}

}  // namespace

Json make_estimate(const Recipe& recipe) {
  const SystemClock clock;
  const double started = clock.wall_seconds();
  const auto config = load_model_config(recipe.model.path, recipe.model.config);
  const auto terms = formula_bytes(recipe, config, world_size_of(recipe));
  Json estimate;
  estimate["formula"] = {{"weights", terms.weights},
                         {"gradients", terms.gradients},
                         {"optimizer", terms.optimizer},
                         {"activations", terms.activations},
                         {"communication", terms.communication},
                         {"overhead", terms.overhead},
                         {"total", terms.total()}};
  estimate["formula_moment"] = name_of(terms.moment);
  if (!is_trained(config)) {
    estimate["dry_run"] = {{"parameters", config.num_parameters()},
                           {"trainable_parameters", num_trained_parameters(recipe, config)},
                           {"world_size", world_size_of(recipe)},
                           {"reason", "model_type " + config.model_type + " is estimated by formula only"}};
    for (const char* key : {"single", "without_checkpointing", "error"}) estimate[key] = nullptr;
    estimate["remedies"] = Json::array();
    estimate["seconds"] = clock.wall_seconds() - started;
    return estimate;
  }
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
  const auto fit = fit_of(member_of(estimate, "dry_run"));
  estimate["remedies"] = Json::array();
  if (fit && !fit->fits) add_remedies(recipe, estimate);
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
  report["device"] = name_of(recipe.device);
  report["attention"] = name_of(recipe.model.attention);
  report["formula"] = estimate["formula"];
  report["formula_moment"] = estimate["formula_moment"];
  report["dry_run"] = {{"peak_allocated_bytes", of_dry_run("peak_allocated_bytes")},
                       {"peak_reserved_bytes", of_dry_run("peak_reserved_bytes")},
                       {"by_category", of_dry_run("by_category")},
                       {"by_phase", of_dry_run("by_phase")},
                       {"largest_at_peak", of_dry_run("largest_at_peak")}};
  const std::string failure = text_in(member_of(estimate, "error"), "message");
  if (!peak) report["dry_run"]["reason"] = failure.empty() ? text_in(dry_run, "reason") : failure;
  report["device_memory_bytes"] = nullptr;
  report["fits"] = nullptr;
  report["headroom_bytes"] = nullptr;
  if (recipe.device_memory_bytes) report["device_memory_bytes"] = *recipe.device_memory_bytes;
  if (const auto fit = fit_of(dry_run)) {
    report["fits"] = fit->fits;
    report["headroom_bytes"] = fit->headroom_bytes();
    report["usable_bytes"] = fit->usable_bytes;
    report["num_alloc_retries"] = fit->num_alloc_retries;
  } else if (const auto total = number_in(member_of(estimate, "formula"), "total");
             recipe.device_memory_bytes && !peak && failure.empty() && total) {
    const auto headroom = *recipe.device_memory_bytes - static_cast<std::int64_t>(*total);
    report["fits"] = headroom >= 0;
    report["headroom_bytes"] = headroom;
    report["usable_bytes"] = *recipe.device_memory_bytes;
    report["num_alloc_retries"] = 0;
    report["fits_by"] = "formula";
  } else {
    const char* reason = peak              ? "device_memory is not stated"
                         : failure.empty() ? "there is no dry run"
                                           : "the dry run failed";
    report["fits_reason"] = reason;
    report["headroom_bytes_reason"] = reason;
    if (!recipe.device_memory_bytes) report["device_memory_bytes_reason"] = "not stated in the recipe";
  }
  report["activation_checkpointing"] = checkpointing_estimate(recipe, estimate);
  report["remedies"] = estimate["remedies"];
  if (estimate.contains("remedies_reason")) report["remedies_reason"] = estimate["remedies_reason"];
  report["seconds"] = estimate["seconds"];
  return report;
}

}  // namespace assay
