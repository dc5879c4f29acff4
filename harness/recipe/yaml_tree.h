#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/recipe/problems.h"

namespace assay {

/// YAML as it was written: scalars are text, and every value knows its place.
struct YamlNode {
  enum class Kind { null, scalar, list, map };
  struct Entry;

  Kind kind = Kind::null;
  std::string text;     ///< of a scalar
  bool quoted = false;  ///< a quoted or block scalar is text, whatever it looks like
  std::vector<YamlNode> items;
  std::vector<Entry> entries;  ///< of a map, in order; keys are unique
  Place place;

  /// The value of a key of this map, or null.
  const YamlNode* find(std::string_view key) const;
};

struct YamlNode::Entry {
  std::string key;
  Place place;  ///< of the key
  YamlNode value;
};

/// Parses one YAML document. A duplicate key, a merge key, an anchor, an alias, a tag, a key that is not a name and a
/// second document are added to `problems`. A syntax error, or more than 50 levels, ends the reading: throws
/// Error{recipe} with it and all problems so far.
YamlNode parse_yaml(const std::string& text, const std::string& source, Problems& problems);

/// The value of KEY=VALUE: YAML if it starts with a bracket, a brace or a quote, else a plain scalar to its last
/// character, so that a path may hold anything. Mistakes and errors as above, at `place`, named by `key`.
YamlNode parse_override_value(const std::string& key, const std::string& value, const Place& place, Problems& problems);

}  // namespace assay
