#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "harness/core/json.h"
#include "harness/recipe/problems.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/yaml_tree.h"

namespace assay {

/// Reads single values strictly. Each function returns nothing after adding a mistake, named by `key`, to `problems`.
class ValueReader {
 public:
  ValueReader(std::string key, Range range, Problems& problems)
      : key_(std::move(key)), range_(range), problems_(problems) {}

  std::optional<bool> boolean(const YamlNode& node) const;
  std::optional<std::int64_t> integer(const YamlNode& node) const;
  std::optional<double> number(const YamlNode& node) const;
  /// A number of bytes or a size with its unit.
  std::optional<std::int64_t> bytes(const YamlNode& node) const;
  std::optional<std::string> text(const YamlNode& node) const;
  std::optional<std::size_t> choice(const YamlNode& node, const std::vector<std::string_view>& names) const;
  /// Any value; plain scalars become what they look like.
  std::optional<Json> json(const YamlNode& node) const;

  void add(const YamlNode& node, const std::string& what) const { problems_.add(node.place, key_, what); }

 private:
  bool is_plain_scalar(const YamlNode& node, const std::string& expected) const;
  void add_expected(const YamlNode& node, const std::string& expected) const;

  std::string key_;
  Range range_;
  Problems& problems_;
};

/// A value as messages show it: the scalar as written, "a list", "a map" or "null".
std::string shown(const YamlNode& node);

}  // namespace assay
