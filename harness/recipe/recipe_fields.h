#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/recipe/recipe.h"

namespace assay {

/// Allowed numbers, both ends included unless low_excluded.
struct Range {
  double low = 0;
  double high = 0;
  bool low_excluded = false;
  std::string reason{};  ///< why, where that is not plain
};

/// A member with named alternatives; the index counts names. Nothing: not decided yet.
struct ChoiceMember {
  std::vector<std::string_view> names;
  std::function<std::optional<std::size_t>()> get;
  std::function<void(std::size_t)> set;
};

/// A size in bytes: a number or a text such as "80GiB".
struct BytesMember {
  std::optional<std::int64_t>* value;
};

/// Text of a JSON object.
struct JsonObjectMember {
  std::string* text;
};

using FieldMember =
    std::variant<bool*, std::int64_t*, std::optional<std::int64_t>*, double*, std::optional<double>*, std::string*,
                 std::optional<std::string>*, std::array<double, 2>*, std::optional<std::array<double, 2>>*,
                 std::vector<std::string>*, std::vector<DataPath>*, std::map<std::string, std::int64_t>*,
                 std::map<std::string, double>*, BytesMember, JsonObjectMember, ChoiceMember>;

/// One key of a recipe.
struct Field {
  std::string key;  ///< dotted: "train.max_steps"
  FieldMember member;
  std::string help;
  Range range{};                  ///< of numbers, also of those in lists and maps
  bool null_allowed = false;      ///< the contract documents a default of null
  bool one_text_allowed = false;  ///< a list that may be written as one text
};

/// Every key of a recipe, in the order of the contract, pointing into `recipe`. Reading, writing, comparison and help
/// are each written once against this list.
std::vector<Field> recipe_fields(Recipe& recipe);

/// "1 to 1048576", "above 0, up to 1", with the reason in brackets.
std::string range_text(const Range& range);

/// The field with this key or null.
const Field* find_field(const std::vector<Field>& fields, std::string_view key);

/// All keys with type, range, default and meaning, one a line.
std::string recipe_key_help();

}  // namespace assay
