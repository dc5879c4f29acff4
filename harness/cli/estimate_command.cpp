#include <cstdio>

#include "harness/acceptance/estimate.h"
#include "harness/acceptance/run_record.h"
#include "harness/cli/run_commands.h"
#include "harness/cli/validate.h"
#include "harness/core/error.h"
#include "harness/core/log.h"
#include "harness/core/units.h"

namespace assay {
namespace {

std::string bytes_or(const Json& value, const std::string& otherwise) {
  return value.is_number() ? format_bytes(value.get<std::int64_t>()) : otherwise;
}

std::string table_of(const Json& report) {
  const auto parameters = number_in(&report, "parameters");
  std::string text = "closed formula: screening, not acceptance (bytes of the fullest rank, bytes a parameter)\n";
  char line[160];
  for (const auto& [term, bytes] : report["formula"].items()) {
    const double each = parameters && *parameters > 0 ? bytes.get<double>() / *parameters : 0;
    std::snprintf(line, sizeof line, "  %-16s %14s %10.3f\n", term.c_str(), bytes_or(bytes, "-").c_str(), each);
    text += line;
  }
  text += "dry run: the program itself on meta tensors\n";
  const auto& dry_run = report["dry_run"];
  auto add = [&](const std::string& name, const Json& bytes) {
    std::snprintf(line, sizeof line, "  %-16s %14s\n", name.c_str(), bytes_or(bytes, "-").c_str());
    text += line;
  };
  for (const char* key : {"by_category", "by_phase"}) {
    if (!dry_run[key].is_object()) continue;
    for (const auto& [name, bytes] : dry_run[key].items()) add(name, bytes);
  }
  add("peak", dry_run["peak_allocated_bytes"]);
  text += "device memory " + bytes_or(report["device_memory_bytes"], "not stated");
  if (report["fits"].is_boolean()) {
    text += report["fits"].get<bool>() ? ": fits, headroom " : ": does not fit, headroom -";
    const auto headroom = report["headroom_bytes"].get<std::int64_t>();
    text += format_bytes(headroom < 0 ? -headroom : headroom);
  }
  return text + "\n";
}

}  // namespace

int run_estimate(const CommandLine& line) {
  const auto loaded = load_from(line);
  if (line.has("dry-run")) return print_recipe(loaded, line);
  const auto estimate = make_estimate(loaded.recipe);
  const auto report = estimate_report(loaded.recipe, estimate);
  std::fputs((line.has("json") ? dump_json_pretty(report) : table_of(report)).c_str(), stdout);
  if (const Json* error = member_of(estimate, "error")) {
    log_error("the dry run failed: " + text_in(error, "message"));
    return exit_code_of(error_kind_from_name(text_in(error, "error")));
  }
  return report["fits"] == false ? exit_rejected : exit_done;
}

}  // namespace assay
