#include "harness/acceptance/limits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/nearest.h"
#include "harness/core/units.h"
#include "harness/recipe/yaml_tree.h"

namespace assay {
namespace {

constexpr std::array<std::string_view, 4> kKindNames{"min", "max", "within", "info"};
constexpr std::array<std::string_view, 4> kKindTexts{"at least", "at most", "within", "recorded only"};

/// Every known limit and the kind that its check asks for; info is allowed for each.
const std::map<std::string, LimitKind>& known_limits() {
  static const std::map<std::string, LimitKind> kinds{
      {"collective_max_abs_error", LimitKind::max}, {"memory_deviation", LimitKind::within},
      {"formula_deviation", LimitKind::within},     {"loss_slope", LimitKind::max},
      {"resume_difference", LimitKind::max},        {"share_of_median", LimitKind::min},
      {"speed_of_median", LimitKind::min},          {"ceiling_fraction", LimitKind::min}};
  return kinds;
}

std::string_view name_of(LimitKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

void read_field(const std::string& name, const YamlNode::Entry& field, Limit& limit, Problems& problems) {
  const auto key = name + "." + field.key;
  const auto& node = field.value;
  if (field.key == "value" && node.kind == YamlNode::Kind::null) return;
  if (node.kind != YamlNode::Kind::scalar) {
    problems.add(node.place, key, "must be a single value");
  } else if (field.key == "kind") {
    const auto found = std::find(kKindNames.begin(), kKindNames.end(), node.text);
    if (found == kKindNames.end()) {
      problems.add(node.place, key, "is min, max, within or info, not \"" + node.text + "\"");
    } else {
      limit.kind = static_cast<LimitKind>(found - kKindNames.begin());
    }
  } else if (field.key == "value") {
    if (!node.quoted) limit.value = parse_number(node.text);
    if (!limit.value) problems.add(node.place, key, "must be a finite number, not \"" + node.text + "\"");
  } else if (field.key == "unit") {
    limit.unit = node.text;
  } else if (field.key == "source") {
    limit.source = node.text;
    if (node.text.empty()) problems.add(node.place, key, "is empty: say where the value comes from");
  } else {
    problems.add(field.place, key, "is no key of a limit (kind, value, unit, source)");
  }
}

Limit read_limit(const std::string& name, const YamlNode& node, Problems& problems) {
  Limit limit;
  if (node.kind != YamlNode::Kind::map) {
    problems.add(node.place, name, "must be {kind, value, unit, source}");
    return limit;
  }
  for (const auto& field : node.entries) read_field(name, field, limit, problems);
  for (const char* key : {"kind", "unit", "source"}) {
    if (node.find(key) == nullptr) problems.add(node.place, name + "." + key, "is missing");
  }
  const auto kind = known_limits().at(name);
  if (limit.kind != LimitKind::info && limit.kind != kind) {
    problems.add(node.place, name + ".kind",
                 "is " + std::string(name_of(kind)) + " or info, not " + std::string(name_of(limit.kind)));
  }
  if (limit.kind != LimitKind::info && !limit.value && problems.all_good({name + ".value"})) {
    problems.add(node.place, name + ".value", "is missing");
  }
  return limit;
}

}  // namespace

bool Limit::met_by(double measured) const {
  if (!std::isfinite(measured)) return false;
  switch (kind) {
    case LimitKind::min:
      return measured >= *value;
    case LimitKind::max:
      return measured <= *value;
    case LimitKind::within:
      return std::fabs(measured) <= *value;
    case LimitKind::info:
      break;
  }
  return true;
}

std::optional<double> Limit::margin_of(double measured) const {
  if (kind == LimitKind::info || !value || *value == 0 || !std::isfinite(measured)) return std::nullopt;
  const double left = kind == LimitKind::min ? measured - *value
                                             : *value - (kind == LimitKind::within ? std::fabs(measured) : measured);
  return left / std::fabs(*value);
}

std::string Limit::text() const {
  auto words = std::string(kKindTexts[static_cast<std::size_t>(kind)]);
  if (value) words += " " + format_number(*value);
  return unit.empty() ? words : words + " " + unit;
}

const Limit* Limits::find(const std::string& name) const {
  const auto found = rows.find(name);
  return found == rows.end() ? nullptr : &found->second;
}

Limits load_limits(const std::filesystem::path& path) {
  Limits limits;
  Problems problems;
  const auto root = parse_yaml(read_text_file(path), path.string(), problems);
  if (root.kind != YamlNode::Kind::map) problems.add(root.place, "", "a limits file is a mapping of names");
  for (const auto& row : root.entries) {
    if (known_limits().contains(row.key)) {
      limits.rows[row.key] = read_limit(row.key, row.value, problems);
      continue;
    }
    std::vector<std::string> names;
    for (const auto& [name, kind] : known_limits()) names.push_back(name);
    const auto nearest = nearest_name(row.key, names);
    problems.add(row.place, row.key, "is no known limit" + (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }
  problems.throw_if_any();
  return limits;
}

}  // namespace assay
