#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/core/json.h"

namespace assay {

/// What came out of a check. A measurement that is missing is `incomplete`, never `pass`; `skip` does not apply here.
enum class Status { pass, fail, incomplete, skip };
/// What to do with the machine: nothing, keep an eye on it, reset the part, take it out of service.
enum class Action { none, watch, reset, isolate };

std::string_view name_of(Status status);
std::string_view name_of(Action action);

/// One check: a line of results.jsonl. Three verdicts are kept apart: did it run, was the machine healthy, and did it
/// meet the limit (`status`).
struct Result {
  std::string check;  ///< "<stage>.<name>"
  std::string stage;
  Status status = Status::incomplete;
  Json measured;  ///< a number, a text, or null
  Json limit;     ///< what it was compared with, or null
  std::optional<double>
      margin;  ///< what is left to the limit as a fraction of it; negative beyond it; nothing if it is 0
  std::string unit;
  std::string reason;      ///< why it is not a pass, or what a reader must know beside the number
  std::vector<int> ranks;  ///< those concerned; empty: all or none in particular
  std::string evidence;    ///< file in the run folder
  std::optional<double> seconds;
  bool ran = true;
  std::optional<bool> healthy;  ///< nothing: this check says nothing about the machine's health
  Action action = Action::none;
};

Json result_to_json(const Result& result);

/// Throws Error{data} that names `what` for a missing field or an unknown status.
Result result_from_json(const Json& json, const std::string& what);

/// Writes one line a result; the old or the new file is there, whole, also after a power cut. Throws Error{io}.
void write_results(const std::filesystem::path& path, const std::vector<Result>& results);

/// A missing file is an empty list. Throws Error{data} for a bad line.
std::vector<Result> read_results(const std::filesystem::path& path);

/// accepted, rejected or incomplete, with its exit code and how many results there are of each status.
struct Verdict {
  std::string name;
  int exit_code = 0;
  int num_pass = 0, num_fail = 0, num_incomplete = 0, num_skip = 0;
};

/// Any fail: rejected, 1. Else any incomplete, or not a single pass: incomplete, 3. Else accepted, 0. A skip is
/// counted, and decides nothing.
Verdict verdict_of(const std::vector<Result>& results);

}  // namespace assay
