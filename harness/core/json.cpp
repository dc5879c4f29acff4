#include "harness/core/json.h"

#include <cmath>
#include <set>
#include <vector>

#include "harness/core/error.h"

namespace assay {
namespace {

constexpr int kMaxDepth = 100;

}  // namespace

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_json_pretty(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;
  auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw Error(ErrorKind::data, what + ": JSON nested deeper than 100 levels");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(ErrorKind::data, what + ": JSON key \"" + parsed.get<std::string>() + "\" is given twice");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::data, what + ": not valid JSON: " + error.what());
  }
}

void set_number(Json& object, const std::string& key, double value) {
  if (std::isfinite(value)) {
    object[key] = value;
    return;
  }
  object[key] = nullptr;
  object[key + "_reason"] = std::isnan(value) ? "not a number" : (value > 0 ? "infinite" : "minus infinite");
}

}  // namespace assay
