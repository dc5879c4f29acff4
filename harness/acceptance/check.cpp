#include "harness/acceptance/check.h"

#include <array>

#include "harness/core/error.h"
#include "harness/core/files.h"

namespace assay {
namespace {

constexpr std::array<std::string_view, 4> kStatusNames{"pass", "fail", "incomplete", "skip"};
constexpr std::array<std::string_view, 4> kActionNames{"none", "watch", "reset", "isolate"};

template <typename Value, std::size_t count>
Value value_from_name(const std::array<std::string_view, count>& names, const std::string& name,
                      const std::string& what) {
  for (std::size_t i = 0; i < count; ++i) {
    if (names[i] == name) return static_cast<Value>(i);
  }
  throw Error(ErrorKind::data, what + ": \"" + name + "\" is not a known value");
}

}  // namespace

std::string_view name_of(Status status) { return kStatusNames[static_cast<std::size_t>(status)]; }
std::string_view name_of(Action action) { return kActionNames[static_cast<std::size_t>(action)]; }

Json result_to_json(const Result& result) {
  Json json{{"check", result.check},
            {"stage", result.stage},
            {"status", name_of(result.status)},
            {"measured", result.measured},
            {"limit", result.limit},
            {"unit", result.unit},
            {"reason", result.reason},
            {"ranks", result.ranks},
            {"evidence", result.evidence},
            {"seconds", nullptr},
            {"ran", result.ran},
            {"healthy", nullptr},
            {"action", name_of(result.action)},
            {"margin", nullptr}};
  if (result.margin) json["margin"] = *result.margin;
  if (result.seconds) json["seconds"] = *result.seconds;
  if (result.healthy) json["healthy"] = *result.healthy;
  return json;
}

Result result_from_json(const Json& json, const std::string& what) {
  try {
    Result result;
    result.check = json.at("check").get<std::string>();
    result.stage = json.at("stage").get<std::string>();
    result.status = value_from_name<Status>(kStatusNames, json.at("status").get<std::string>(), what);
    result.measured = json.at("measured");
    result.limit = json.at("limit");
    result.unit = json.at("unit").get<std::string>();
    result.reason = json.at("reason").get<std::string>();
    result.ranks = json.at("ranks").get<std::vector<int>>();
    result.evidence = json.at("evidence").get<std::string>();
    if (!json.at("seconds").is_null()) result.seconds = json["seconds"].get<double>();
    if (!json.at("margin").is_null()) result.margin = json["margin"].get<double>();
    result.ran = json.at("ran").get<bool>();
    if (!json.at("healthy").is_null()) result.healthy = json["healthy"].get<bool>();
    result.action = value_from_name<Action>(kActionNames, json.at("action").get<std::string>(), what);
    return result;
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::data, what + " is not a result: " + error.what());
  }
}

void write_results(const std::filesystem::path& path, const std::vector<Result>& results) {
  std::string text;
  for (const auto& result : results) text += dump_json(result_to_json(result)) + "\n";
  write_file_durably(path, text);
}

std::vector<Result> read_results(const std::filesystem::path& path) {
  std::vector<Result> results;
  if (!std::filesystem::exists(path)) return results;
  const auto lines = split_lines(read_text_file(path));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto what = path.string() + ":" + std::to_string(i + 1);
    results.push_back(result_from_json(parse_json(lines[i], what), what));
  }
  return results;
}

Verdict verdict_of(const std::vector<Result>& results) {
  Verdict verdict;
  for (const auto& result : results) {
    verdict.num_pass += result.status == Status::pass;
    verdict.num_fail += result.status == Status::fail;
    verdict.num_incomplete += result.status == Status::incomplete;
    verdict.num_skip += result.status == Status::skip;
  }
  verdict.name = "accepted";
  verdict.exit_code = exit_done;
  if (verdict.num_fail > 0) {
    verdict.name = "rejected";
    verdict.exit_code = exit_rejected;
  } else if (verdict.num_incomplete > 0 || verdict.num_pass == 0) {
    verdict.name = "incomplete";
    verdict.exit_code = exit_incomplete;
  }
  return verdict;
}

}  // namespace assay
