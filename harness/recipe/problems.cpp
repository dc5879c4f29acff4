#include "harness/recipe/problems.h"

#include <algorithm>
#include <tuple>

#include "harness/core/error.h"

namespace assay {

std::string Place::text() const {
  return line == 0 ? source : source + ":" + std::to_string(line) + ":" + std::to_string(column);
}

void Problems::add(const Place& place, const std::string& key, const std::string& what) {
  found_.emplace_back(place, place.text() + ": " + (key.empty() ? "" : key + ": ") + what);
  keys_.insert(key);
}

bool Problems::all_good(const std::vector<std::string>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) {
    for (auto dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
      if (keys_.contains(key.substr(0, dot))) return true;
    }
    return keys_.contains(key) || keys_.contains("");
  });
}

void Problems::throw_if_any() const {
  if (found_.empty()) return;
  auto sorted = found_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& left, const auto& right) {
    auto order = [](const Place& place) { return std::tuple(place.line == 0, place.line, place.column); };
    return order(left.first) < order(right.first);
  });
  std::string message = sorted.size() == 1 ? "" : std::to_string(sorted.size()) + " mistakes in the recipe:\n";
  for (const auto& [place, line] : sorted) message += line + "\n";
  message.pop_back();
  throw Error(ErrorKind::recipe, message);
}

}  // namespace assay
