#include "harness/acceptance/threshold.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/launch/rank_failure.h"
#include "harness/memory/overhead.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/recipe_json.h"
#include "harness/recipe/suggestions.h"

namespace assay {
namespace {

constexpr std::int64_t kTrialSteps = 3;  // from the second on all are alike
constexpr std::string_view kConfigPrefix = "model.config.";

[[noreturn]] void refuse_key(const std::string& key, const std::string& why) {
  throw Error(ErrorKind::usage, "--vary " + key + ": " + why);
}

/// A key's own value, and what it may be.
struct VariedKey {
  std::int64_t value = 1;
  std::int64_t low = 1;
  std::int64_t high = kLargestVariedValue;
};

VariedKey config_key(const Recipe& recipe, const std::string& key) {
  const auto file = std::filesystem::path(recipe.model.path) / "config.json";
  Json config = parse_json(read_text_file(file), file.string());
  config.merge_patch(parse_json(recipe.model.config, "model.config"));
  const Json* value = &config;
  for (std::string rest = key.substr(kConfigPrefix.size()); value != nullptr && !rest.empty();) {
    const auto dot = rest.find('.');
    value = member_of(*value, rest.substr(0, dot));
    rest = dot == std::string::npos ? "" : rest.substr(dot + 1);
  }
  if (value == nullptr) {
    refuse_key(key, "is not in " + file.string() + "; if the model knows it, begin with a value: " + key + "=1");
  }
  if (!value->is_number_integer()) refuse_key(key, "is " + dump_json(*value) + ", which is no whole number");
  return {value->get<std::int64_t>()};
}

VariedKey recipe_key(Recipe recipe, const std::string& key) {
  check_key("--vary", key);
  if (key == "parallel.nproc_per_node")
    refuse_key(key, "each value would be another set of ranks; assay estimate names how many do");
  const auto fields = recipe_fields(recipe);
  const Field& field = *find_field(fields, key);
  std::optional<std::int64_t> value;
  if (const auto* number = std::get_if<std::int64_t*>(&field.member)) {
    value = **number;
  } else if (const auto* open = std::get_if<std::optional<std::int64_t>*>(&field.member)) {
    value = (*open)->value_or(1);
  } else {
    refuse_key(key, "is no whole number; assay validate --keys says which are");
  }
  const double high = std::min(field.range.high, static_cast<double>(kLargestVariedValue));
  return {*value, std::max<std::int64_t>(1, static_cast<std::int64_t>(field.range.low)),
          static_cast<std::int64_t>(high)};
}

/// Of every trial: what has no part in the memory of a step is taken away.
Recipe trial_recipe(const Recipe& target) {
  Recipe recipe = target;
  recipe.model.init = ModelInit::random;
  recipe.tokenizer.path.reset();
  recipe.data.path.clear();
  recipe.data.format = DataFormat::synthetic;
  recipe.data.eval_path.reset();
  recipe.train.max_steps = kTrialSteps;
  recipe.train.epochs.reset();
  recipe.train.eval_interval = 0;
  recipe.train.global_batch_size.reset();  // it follows
  recipe.checkpoint.interval = 0;
  recipe.checkpoint.minutes.reset();
  recipe.checkpoint.save_at_end = false;
  recipe.resume = "never";
  return recipe;
}

/// What both jobs are told.
Json options_of(const Recipe& recipe, const ThresholdQuestion& question) {
  ASSAY_CHECK(question.step >= 1 && question.step <= kLargestVariedValue);
  const auto range =
      question.key.starts_with(kConfigPrefix) ? config_key(recipe, question.key) : recipe_key(recipe, question.key);
  const std::int64_t low = (range.low + question.step - 1) / question.step * question.step;
  const std::int64_t high = range.high / question.step * question.step;
  if (low > high) refuse_key(question.key, "--step " + std::to_string(question.step) + " leaves no value to try");
  return {{"key", question.key},
          {"step", question.step},
          {"low", low},
          {"high", high},
          {"start", std::clamp(range.value / question.step * question.step, low, high)},
          {"num_steps", kTrialSteps}};
}

std::string assignment(const std::string& key, const Json& value) { return key + "=" + dump_json(value); }

/// Throws unless memory ends what fits.
void check_has_threshold(const ThresholdQuestion& question, const Json& options, const Json& search) {
  const auto refused = text_in(&search, "refused");
  const std::string hint = " (--step N tries multiples of N only)";
  if (search["last_good"].is_null() && refused.empty()) {
    const auto& smallest = search["curve"].front();
    throw Error(ErrorKind::memory, "no value of " + question.key +
                                       " fits: " + assignment(question.key, smallest["value"]) + " would reserve " +
                                       dump_json(smallest["predicted_reserved_bytes"]) + " bytes");
  }
  if (!refused.empty()) {
    refuse_key(question.key, (search["last_good"].is_null()
                                  ? "no value can be tried: "
                                  : "no limit by memory up to " + dump_json(search["last_good"]) + ", which fits: ") +
                                 assignment(question.key, search["first_bad"]) + " is refused" + hint + ": " + refused);
  }
  if (search["first_bad"].is_null()) {
    refuse_key(question.key, "no limit up to " + dump_json(options["high"]) + ", which fits: memory does not end it");
  }
}

[[noreturn]] void throw_failure(const LaunchResult& result) {
  if (result.interrupted_by) throw Interrupted(*result.interrupted_by);
  ASSAY_CHECK(result.root_cause.has_value());
  throw Error(error_kind_from_name(result.root_cause->error_kind), describe(*result.root_cause));
}

/// Adds what the ranks of a job measured to the points by value, and gives the value that was found.
Json read_trials(const JobRecord& job, std::map<std::int64_t, Json>& points) {
  for (int rank = 0; rank < job.world_size(); ++rank) {
    for (const Json* event : job.events(rank, "check")) {
      if (text_in(event, "name") != "fit_trial") continue;
      const auto value = (*event)["value"].get<std::int64_t>();
      auto& point = points.try_emplace(value, Json{{"value", value}, {"fits", (*event)["fits"]}}).first->second;
      for (const char* key : {"measured_allocated_bytes", "measured_reserved_bytes"}) {
        const auto bytes = (*event)[key].get<std::int64_t>();
        point[key] = std::max(bytes, point.value(key, bytes));
      }
    }
  }
  const Json* threshold = job.find(0, "check", "name", "threshold");
  ASSAY_CHECK(threshold != nullptr);
  return (*threshold)["last_good"];
}

}  // namespace

Json predict_threshold(const Recipe& recipe, const ThresholdQuestion& question) {
  const Json options = options_of(recipe, question);
  if (!recipe.device_memory_bytes) {
    throw Error(ErrorKind::usage,
                "device_memory is not stated, so everything fits; give device_memory=80GiB, or what the device has");
  }
  const auto output = run_rank_program(
      {{"kind", "fit_search"}, {"recipe", recipe_to_json(trial_recipe(recipe))}, {"options", options}});
  if (output.exit_code != exit_done) {
    const auto failure = failure_of(output);
    throw Error(failure.kind(), std::string("the threshold was not predicted: ") + failure.what());
  }
  const Json search = parse_json(output.out, "output of the search");
  check_has_threshold(question, options, search);
  return {{"predicted", search["last_good"]}, {"smallest", search["smallest"]}, {"curve", search["curve"]}};
}

Json find_threshold_by_trials(const std::filesystem::path& run_folder, const Recipe& recipe,
                              const ThresholdQuestion& question, const Json& prediction, const JobDisplay& display) {
  Json options = options_of(recipe, question);
  options["start"] = prediction["predicted"];
  options["smallest"] = prediction["smallest"];
  std::map<std::int64_t, Json> points;
  Json trials = Json::object();
  for (const auto& [job, field] : {std::pair("threshold-1", "found"), std::pair("threshold-2", "found_again")}) {
    const auto result =
        run_attempt(run_folder, {job, "fit_trials", trial_recipe(recipe), recipe, "", options}, display);
    if (result.exit_code != exit_done) throw_failure(result);
    trials[field] = read_trials(read_job(run_folder / "jobs" / job), points);
  }
  trials["points"] = Json::array();
  for (const auto& entry : points) trials["points"].push_back(entry.second);
  return trials;
}

Json threshold_report(const Recipe& recipe, const ThresholdQuestion& question, const Json& prediction,
                      const Json& trials, double seconds) {
  Json report{{"key", question.key}, {"step", question.step}, {"predicted", prediction["predicted"]}};
  for (const char* key : {"found", "found_again"}) {
    report[key] = trials.is_null() ? Json() : trials[key];
    if (report[key].is_null()) report[std::string(key) + "_reason"] = trials.is_null() ? "only predicted" : "none fits";
  }
  report["equal"] = nullptr;
  if (trials.is_null()) {
    report["equal_reason"] = "only predicted";
  } else {
    report["equal"] = trials["found"] == prediction["predicted"] && trials["found_again"] == prediction["predicted"];
  }
  report["capacity_bytes"] = usable_device_bytes(recipe);
  std::map<std::int64_t, Json> curve;
  const Json empty{
      {"value", nullptr},        {"predicted_allocated_bytes", nullptr}, {"predicted_reserved_bytes", nullptr},
      {"fits", nullptr},         {"measured_allocated_bytes", nullptr},  {"measured_reserved_bytes", nullptr},
      {"measured_fits", nullptr}};
  for (const auto& predicted : prediction["curve"]) {
    auto& point = curve.try_emplace(predicted["value"].get<std::int64_t>(), empty).first->second;
    point.update(predicted);
  }
  for (const auto& measured : (trials.is_null() ? Json::array() : trials["points"])) {
    auto& point = curve.try_emplace(measured["value"].get<std::int64_t>(), empty).first->second;
    point["value"] = measured["value"];
    point["measured_fits"] = measured["fits"];
    for (const char* key : {"measured_allocated_bytes", "measured_reserved_bytes"}) point[key] = measured[key];
  }
  report["curve"] = Json::array();
  for (const auto& entry : curve) report["curve"].push_back(entry.second);
  report["seconds"] = seconds;
  return report;
}

}  // namespace assay
