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

std::string or_dash(const Json& value) { return value.is_string() ? value.get<std::string>() : "-"; }

std::string largest_of(const Json& rows) {
  if (!rows.is_array() || rows.empty()) return "";
  std::string text = "largest at the peak\n";
  char line[256];
  for (const auto& row : rows) {
    std::snprintf(line, sizeof line, "  %4lld x %-12s %-14s %-9s %-34s %s\n",
                  static_cast<long long>(row["count"].get<std::int64_t>()), bytes_or(row["bytes"], "-").c_str(),
                  or_dash(row["category"]).c_str(), or_dash(row["phase"]).c_str(), or_dash(row["operation"]).c_str(),
                  or_dash(row["unit"]).c_str());
    text += line;
  }
  return text;
}

std::string fit_of_plan(const Json& report) {
  std::string text = "device memory " + bytes_or(report["device_memory_bytes"], "not stated");
  if (!report["fits"].is_boolean()) return text + "\n";
  const auto headroom = report["headroom_bytes"].get<std::int64_t>();
  text += ", usable " + bytes_or(report["usable_bytes"], "-");
  text += report["fits"].get<bool>() ? ": fits, headroom " : ": does not fit, headroom -";
  text += format_bytes(headroom < 0 ? -headroom : headroom);
  if (report["fits"] == true && report["num_alloc_retries"] != 0) text += "; only by giving back cached memory";
  return text + "\n";
}

std::string remedies_of(const Json& rows) {
  if (rows.empty()) return "";
  std::string text = "what would change that (peak reserved)\n";
  char line[512];
  for (const auto& row : rows) {
    const char* fits = row["fits"] == true ? "fits" : "too large";
    std::snprintf(line, sizeof line, "  %14s  %-9s  %s (%s): %s\n", bytes_or(row["peak_bytes"], "-").c_str(), fits,
                  or_dash(row["change"]).c_str(), or_dash(row["by"]).c_str(), or_dash(row["cost"]).c_str());
    text += line;
  }
  return text;
}

std::string table_of(const Json& report) {
  const auto parameters = number_in(&report, "parameters");
  std::string text =
      "closed formula: screening, not acceptance (bytes of the fullest rank, bytes a parameter; fullest in " +
      text_in(&report, "formula_moment") + ")\n";
  char line[160];
  for (const auto& [term, bytes] : report["formula"].items()) {
    const double each = parameters && *parameters > 0 ? bytes.get<double>() / *parameters : 0;
    std::snprintf(line, sizeof line, "  %-16s %14s %10.3f\n", term.c_str(), bytes_or(bytes, "-").c_str(), each);
    text += line;
  }
  text += "dry run: the program itself on meta tensors, for " + text_in(&report, "device") + " with " +
          text_in(&report, "attention") + " attention\n";
  const auto& dry_run = report["dry_run"];
  auto add = [&](const std::string& name, const Json& bytes) {
    std::snprintf(line, sizeof line, "  %-16s %14s\n", name.c_str(), bytes_or(bytes, "-").c_str());
    text += line;
  };
  for (const char* key : {"by_category", "by_phase"}) {
    if (!dry_run[key].is_object()) continue;
    for (const auto& [name, bytes] : dry_run[key].items()) add(name, bytes);
  }
  add("peak allocated", dry_run["peak_allocated_bytes"]);
  add("peak reserved", dry_run["peak_reserved_bytes"]);
  if (const auto reason = text_in(&dry_run, "reason"); !reason.empty()) text += "  none: " + reason + "\n";
  return text + largest_of(dry_run["largest_at_peak"]) + fit_of_plan(report) + remedies_of(report["remedies"]);
}

}  // namespace

int run_estimate(const CommandLine& line) {
  const auto loaded = load_from(line, /*runs=*/false);
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
