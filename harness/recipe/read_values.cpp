#include "harness/recipe/read_values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <system_error>
#include <vector>

#include "harness/core/nearest.h"
#include "harness/core/units.h"

namespace assay {
namespace {

bool has_leading_zero(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && std::isdigit(static_cast<unsigned char>(text[1]));
}

/// What YAML 1.1 readers take for a boolean.
bool looks_boolean(const std::string& text) {
  std::string lower(text.size(), ' ');
  std::transform(text.begin(), text.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  constexpr std::array words{"true", "false", "yes", "no", "on", "off"};
  return std::find(words.begin(), words.end(), lower) != words.end();
}

bool in_range(double value, const Range& range) {
  return (range.low_excluded ? value > range.low : value >= range.low) && value <= range.high;
}

std::from_chars_result parse_integer(const std::string& text, std::int64_t& value) {
  return std::from_chars(text.data(), text.data() + text.size(), value);
}

}  // namespace

std::string shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "null";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a map";
    case YamlNode::Kind::scalar:
      break;
  }
  constexpr std::size_t longest = 80;
  const auto text = node.text.size() > longest ? node.text.substr(0, longest) + "..." : node.text;
  return node.quoted ? "\"" + text + "\"" : text;
}

void ValueReader::add_expected(const YamlNode& node, const std::string& expected) const {
  add(node, shown(node) + " is given, expected is " + expected);
}

bool ValueReader::is_plain_scalar(const YamlNode& node, const std::string& expected) const {
  if (node.kind == YamlNode::Kind::scalar && !node.quoted) return true;
  const bool text = node.kind == YamlNode::Kind::scalar;
  add(node, shown(node) + (text ? " is text (it is quoted), expected is " : " is given, expected is ") + expected);
  return false;
}

std::optional<bool> ValueReader::boolean(const YamlNode& node) const {
  if (!is_plain_scalar(node, "true or false")) return std::nullopt;
  if (node.text == "true") return true;
  if (node.text == "false") return false;
  add(node, shown(node) + " is no boolean here; write true or false");
  return std::nullopt;
}

std::optional<std::int64_t> ValueReader::integer(const YamlNode& node) const {
  const auto expected = "a whole number, allowed: " + range_text(range_);
  if (!is_plain_scalar(node, expected)) return std::nullopt;
  std::int64_t value = 0;
  const auto result = parse_integer(node.text, value);
  const bool whole = result.ptr == node.text.data() + node.text.size();
  if (has_leading_zero(node.text)) {
    add(node, shown(node) + " has a leading zero; write it without");
  } else if (whole && (result.ec == std::errc::result_out_of_range || !in_range(static_cast<double>(value), range_))) {
    add(node, shown(node) + " is out of range, allowed: " + range_text(range_));
  } else if (!whole || result.ec != std::errc()) {
    add_expected(node, expected);
  } else {
    return value;
  }
  return std::nullopt;
}

std::optional<double> ValueReader::number(const YamlNode& node) const {
  const auto expected = "a number, allowed: " + range_text(range_);
  if (!is_plain_scalar(node, expected)) return std::nullopt;
  const auto value = parse_number(node.text);
  if (has_leading_zero(node.text)) {
    add(node, shown(node) + " has a leading zero; write it without");
  } else if (!value) {
    add_expected(node, expected);
  } else if (!in_range(*value, range_)) {
    add(node, shown(node) + " is out of range, allowed: " + range_text(range_));
  } else {
    return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> ValueReader::bytes(const YamlNode& node) const {
  const std::string expected = "a number of bytes or a size such as 80GiB";
  if (node.kind != YamlNode::Kind::scalar) {
    add_expected(node, expected);
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto result = parse_integer(node.text, value);
  if (result.ptr == node.text.data() + node.text.size() && !node.quoted) return integer(node);
  const auto size = has_leading_zero(node.text) ? std::nullopt : parse_bytes(node.text);
  constexpr std::string_view prefixes = "KMGTkmgt";
  if (size && in_range(static_cast<double>(*size), range_)) return size;
  if (size) {
    add(node, shown(node) + " is out of range, allowed: " + range_text(range_) + " bytes");
  } else if (!node.text.empty() && prefixes.find(node.text.back()) != std::string_view::npos) {
    add(node, shown(node) + " does not say which unit is meant; write GiB (2^30 bytes) or GB (10^9 bytes)");
  } else {
    add_expected(node, expected);
  }
  return std::nullopt;
}

std::optional<std::string> ValueReader::text(const YamlNode& node) const {
  if (node.kind != YamlNode::Kind::scalar) {
    add_expected(node, "one text");
  } else if (!node.quoted && (looks_boolean(node.text) || parse_number(node.text))) {
    add(node, shown(node) + (looks_boolean(node.text) ? " is a boolean" : " is a number") +
                  ", expected is a text; quote it if it is one");
  } else if (node.text.empty() || node.text.find('\0') != std::string::npos) {
    add(node, node.text.empty() ? "the text is empty" : "the text holds a NUL character");
  } else {
    return node.text;
  }
  return std::nullopt;
}

std::optional<std::size_t> ValueReader::choice(const YamlNode& node, const std::vector<std::string_view>& names) const {
  const auto found = std::find(names.begin(), names.end(), node.text);
  if (node.kind == YamlNode::Kind::scalar && found != names.end()) {
    return static_cast<std::size_t>(found - names.begin());
  }
  std::string allowed;
  for (const auto& name : names) allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  const auto nearest = node.kind == YamlNode::Kind::scalar ? nearest_name(node.text, {names.begin(), names.end()}) : "";
  add(node, shown(node) + " is not one of the allowed: " + allowed +
                (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  return std::nullopt;
}

std::optional<Json> ValueReader::json(const YamlNode& node) const {
  if (node.kind == YamlNode::Kind::null) return Json(nullptr);
  if (node.kind == YamlNode::Kind::list) {
    Json list = Json::array();
    for (const auto& item : node.items) {
      const auto value = json(item);
      if (!value) return std::nullopt;
      list.push_back(*value);
    }
    return list;
  }
  if (node.kind == YamlNode::Kind::map) {
    Json map = Json::object();
    for (const auto& entry : node.entries) {
      const auto value = ValueReader(key_ + "." + entry.key, range_, problems_).json(entry.value);
      if (!value) return std::nullopt;
      map[entry.key] = *value;
    }
    return map;
  }
  if (node.quoted) return Json(node.text);
  if (node.text == "true" || node.text == "false") return Json(node.text == "true");
  std::int64_t whole = 0;
  const auto result = parse_integer(node.text, whole);
  const bool is_whole = result.ptr == node.text.data() + node.text.size();
  const auto fraction = parse_number(node.text);
  if (has_leading_zero(node.text) && fraction) {
    add(node, shown(node) + " has a leading zero; write it without");
  } else if (looks_boolean(node.text)) {
    add(node, shown(node) + " is no boolean here; write true or false");
  } else if (is_whole && result.ec == std::errc::result_out_of_range) {
    add(node, shown(node) + " is out of range: it does not fit into 64 bits");
  } else {
    return is_whole ? Json(whole) : fraction ? Json(*fraction) : Json(node.text);
  }
  return std::nullopt;
}

}  // namespace assay
