#include "harness/cli/read_job.h"

#include <algorithm>
#include <array>

#include "harness/core/error.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace {

constexpr const char* kWhat = "job on standard input";
constexpr const char* kKinds = "train, collective, verify, dry_run, fit_search or fit_trials";

using Test = bool (*)(const Json&);

bool is_text(const Json& value) { return value.is_string(); }
bool is_object(const Json& value) { return value.is_object(); }
bool is_whole_number(const Json& value) { return value.is_number_integer(); }
bool is_number_or_null(const Json& value) { return value.is_number() || value.is_null(); }
bool is_list_of_texts(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
}
bool is_list_of_whole_numbers(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_whole_number);
}
bool is_list_of_objects(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_object);
}

[[noreturn]] void refuse(const std::string& field, const std::string& problem, const std::string& expected) {
  throw Error(ErrorKind::usage, std::string(kWhat) + ": " + field + " " + problem + ", expected is " + expected);
}

void check(const Json& value, const std::string& field, const std::string& expected, Test test) {
  constexpr std::size_t kLongest = 80;
  if (!test(value)) refuse(field, "is " + dump_json(value).substr(0, kLongest), expected);
}

const Json& required(const Json& object, const std::string& field, const std::string& expected, Test test) {
  if (!object.contains(field)) refuse(field, "is missing", expected);
  check(object[field], field, expected, test);
  return object[field];
}

void check_optional(const Json& object, const std::string& field, const std::string& expected, Test test) {
  if (object.contains(field)) check(object[field], "options." + field, expected, test);
}

/// A rank takes a recipe as it is: what resolution decides must be decided.
Recipe resolved_recipe(const Json& json, const std::string& name) {
  auto recipe = recipe_from_json(json);
  const auto fields = recipe_fields(recipe);
  for (const char* key : {"device", "model.path", "model.init", "model.attention", "data.format", "parallel.strategy",
                          "parallel.backend"}) {
    const auto value = field_to_json(*find_field(fields, key));
    if (!value || *value == "auto") refuse(name + "." + key, "is not resolved", "a recipe of assay validate --json");
  }
  return recipe;
}

void check_fit_options(const Job& job) {
  required(job.options, "key", "a recipe key", is_text);
  for (const char* key : {"step", "low", "high", "start", "num_steps"}) {
    required(job.options, key, "a whole number", is_whole_number);
  }
  if (job.kind == "fit_trials") required(job.options, "smallest", "a whole number", is_whole_number);
  check_optional(job.options, "capacity_bytes", "a list of whole numbers", is_list_of_whole_numbers);
}

}  // namespace

Job read_job(std::string_view text, std::vector<Recipe>& dry_runs) {
  const Json json = parse_json(text, kWhat);
  check(json, "the whole", "an object", is_object);
  Job job;
  job.kind = required(json, "kind", kKinds, is_text).get<std::string>();
  if (json.contains("options")) job.options = required(json, "options", "an object", is_object);
  if (job.kind == "dry_run") {
    const auto& recipes = required(json, "recipes", "a list of recipes", is_list_of_objects);
    for (const auto& recipe : recipes) dry_runs.push_back(resolved_recipe(recipe, "recipes"));
  } else if (job.kind == "verify") {
    for (const char* path : {"model", "reference"}) required(job.options, path, "a path", is_text);
    check_optional(job.options, "config", "the text of a JSON object", is_text);
    for (const char* key : {"atol", "rtol", "loss_atol"}) {
      check_optional(job.options, key, "a number or null", is_number_or_null);
    }
  } else if (job.kind == "fit_search") {
    job.recipe = resolved_recipe(required(json, "recipe", "a recipe", is_object), "recipe");
    check_fit_options(job);
  } else if (job.kind == "train" || job.kind == "collective" || job.kind == "fit_trials") {
    job.recipe = resolved_recipe(required(json, "recipe", "a recipe", is_object), "recipe");
    job.folder = required(json, "folder", "a path", is_text).get<std::string>();
    check_optional(job.options, "allow_change", "a list of keys", is_list_of_texts);
    if (job.kind == "fit_trials") check_fit_options(job);
  } else {
    refuse("kind", "is " + job.kind, kKinds);
  }
  return job;
}

}  // namespace assay
