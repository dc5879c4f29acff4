#include "harness/cli/threshold_command.h"

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "harness/acceptance/checksums.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/run_folder.h"
#include "harness/acceptance/threshold.h"
#include "harness/cli/run_commands.h"
#include "harness/cli/validate.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/log.h"
#include "harness/core/units.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

ThresholdQuestion question_of(const CommandLine& line) {
  const auto key = line.value("vary");
  if (!key) throw Error(ErrorKind::usage, "threshold needs --vary KEY, for example --vary train.micro_batch_size");
  const double step = line.number("step").value_or(1);
  if (step != std::floor(step) || step < 1 || step > kLargestVariedValue) {
    throw Error(ErrorKind::usage, "--step " + *line.value("step") + ": expected a whole number from 1 to " +
                                      std::to_string(kLargestVariedValue));
  }
  return {*key, static_cast<std::int64_t>(step)};
}

std::string cell(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "fits" : "full";
  return value.is_number() ? format_bytes(value.get<std::int64_t>()) : "-";
}

std::string table_of(const Json& report) {
  std::string text = report["key"].get<std::string>() + ", largest value that fits " +
                     format_bytes(report["capacity_bytes"].get<std::int64_t>()) + "\n";
  char line[160];
  const auto add = [&](const char* a, const std::string& b, const std::string& c, const std::string& d,
                       const std::string& e, const std::string& f, const std::string& g) {
    std::snprintf(line, sizeof line, "  %10s  %-10s %12s %12s  %-8s %12s %12s\n", a, b.c_str(), c.c_str(), d.c_str(),
                  e.c_str(), f.c_str(), g.c_str());
    text += line;
  };
  add("value", "predicted", "allocated", "reserved", "measured", "allocated", "reserved");
  for (const auto& point : report["curve"]) {
    add(dump_json(point["value"]).c_str(), cell(point["fits"]), cell(point["predicted_allocated_bytes"]),
        cell(point["predicted_reserved_bytes"]), cell(point["measured_fits"]), cell(point["measured_allocated_bytes"]),
        cell(point["measured_reserved_bytes"]));
  }
  text += "predicted " + dump_json(report["predicted"]);
  if (report["equal"].is_null()) return text + "; not tried\n";
  return text + ", found " + dump_json(report["found"]) + ", found again " + dump_json(report["found_again"]) +
         (report["equal"] == true ? ": equal\n" : ": NOT equal\n");
}

}  // namespace

int run_threshold(const CommandLine& line) {
  const auto question = question_of(line);
  const bool only_predict = line.has("predict-only");
  const auto loaded = load_from(line, /*runs=*/!only_predict);
  if (line.has("dry-run")) return print_recipe(loaded, line);
  if (!only_predict) check_inputs(loaded.recipe);
  const SystemClock clock;
  const double start = clock.wall_seconds();
  const auto& recipe = loaded.recipe;
  const auto prediction = predict_threshold(recipe, question);
  log_info("predicted: " + question.key + "=" + dump_json(prediction["predicted"]));
  std::optional<fs::path> folder;
  if (!only_predict || line.has("output")) folder = run_folder_of(recipe, line.value("output"));
  FileDescriptor lock;
  if (folder) lock = begin_run_folder(*folder, loaded, /*needs_limits=*/false);
  Json trials;
  if (!only_predict) {
    constexpr int kHideStdout = 1;
    const JobDisplay display{.echo = !line.has("quiet"), .hidden_streams = line.has("json") ? kHideStdout : 0};
    trials = find_threshold_by_trials(*folder, recipe, question, prediction, display);
  }
  const auto report = threshold_report(recipe, question, prediction, trials, clock.wall_seconds() - start);
  if (folder) {
    write_file_durably(*folder / "threshold.json", dump_json_pretty(report));
    write_checksums(*folder);
    log_info("run folder " + folder->string());
  }
  std::fputs((line.has("json") ? dump_json_pretty(report) : table_of(report)).c_str(), stdout);
  return report["equal"] == false ? exit_rejected : exit_done;
}

}  // namespace assay
