#include "harness/recipe/read_fields.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "harness/core/json.h"
#include "harness/recipe/read_values.h"
#include "harness/recipe/suggestions.h"

namespace assay {
namespace {

constexpr std::string_view kConfigPrefix = "model.config.";

/// Reads one node into a member of any type.
class MemberReader {
 public:
  MemberReader(const Field& field, const YamlNode& node, Problems& problems)
      : field_(field), node_(node), problems_(problems), values_(field.key, field.range, problems) {}

  void operator()(bool* member) const { store(member, values_.boolean(node_)); }
  void operator()(std::int64_t* member) const { store(member, values_.integer(node_)); }
  void operator()(double* member) const { store(member, values_.number(node_)); }
  void operator()(std::string* member) const { store(member, values_.text(node_)); }
  void operator()(std::optional<std::int64_t>* member) const { store(member, values_.integer(node_)); }
  void operator()(std::optional<double>* member) const { store(member, values_.number(node_)); }
  void operator()(std::optional<std::string>* member) const { store(member, values_.text(node_)); }
  void operator()(std::array<double, 2>* member) const { store(member, pair()); }
  void operator()(std::optional<std::array<double, 2>>* member) const { store(member, pair()); }
  void operator()(std::vector<std::string>* member) const { store(member, texts()); }
  void operator()(std::vector<DataPath>* member) const { store(member, data_paths()); }
  void operator()(std::map<std::string, std::int64_t>* member) const { store(member, map(&ValueReader::integer)); }
  void operator()(std::map<std::string, double>* member) const { store(member, map(&ValueReader::number)); }
  void operator()(const BytesMember& member) const { store(member.value, values_.bytes(node_)); }
  void operator()(const ChoiceMember& member) const {
    if (const auto index = values_.choice(node_, member.names)) member.set(*index);
  }
  void operator()(const JsonObjectMember& member) const {
    if (node_.kind != YamlNode::Kind::map) {
      values_.add(node_, shown(node_) + " is given, expected is a map of keys");
    } else if (const auto json = values_.json(node_)) {
      *member.text = dump_json(*json);
    }
  }

 private:
  template <class Member, class Value>
  static void store(Member* member, const std::optional<Value>& value) {
    if (value) *member = *value;
  }

  std::optional<std::array<double, 2>> pair() const {
    if (node_.kind != YamlNode::Kind::list || node_.items.size() != 2) {
      values_.add(node_,
                  shown(node_) + " is given, expected is a list of two numbers, each " + range_text(field_.range));
      return std::nullopt;
    }
    const auto first = values_.number(node_.items[0]);
    const auto second = values_.number(node_.items[1]);
    if (!first || !second) return std::nullopt;
    return std::array{*first, *second};
  }

  std::optional<std::vector<std::string>> texts() const {
    if (field_.one_text_allowed && node_.kind == YamlNode::Kind::scalar) {
      const auto text = values_.text(node_);
      return text ? std::optional(std::vector{*text}) : std::nullopt;
    }
    if (node_.kind != YamlNode::Kind::list) {
      values_.add(node_, shown(node_) + " is given, expected is a list of texts");
      return std::nullopt;
    }
    std::vector<std::string> all;
    for (const auto& item : node_.items) {
      if (const auto text = values_.text(item)) all.push_back(*text);
    }
    return all;
  }

  std::optional<std::vector<DataPath>> data_paths() const {
    std::vector<DataPath> all;
    const auto items = node_.kind == YamlNode::Kind::list ? node_.items : std::vector{node_};
    for (const auto& item : items) {
      if (item.kind == YamlNode::Kind::map) {
        all.push_back(weighted_path(item));
      } else if (const auto text = values_.text(item)) {
        all.push_back({*text, 1});
      }
    }
    return all;
  }

  DataPath weighted_path(const YamlNode& item) const {
    DataPath read;
    for (const auto& [key, place, value] : item.entries) {
      const ValueReader values(field_.key + "." + key, field_.range, problems_);
      if (key == "path") {
        store(&read.path, values.text(value));
      } else if (key == "weight") {
        store(&read.weight, values.number(value));
      } else {
        problems_.add(place, field_.key + "." + key, "unknown key; allowed: path, weight");
      }
    }
    if (item.find("path") == nullptr) values_.add(item, "a map without the key path");
    return read;
  }

  template <class Value>
  std::optional<std::map<std::string, Value>> map(std::optional<Value> (ValueReader::*read)(const YamlNode&)
                                                      const) const {
    if (node_.kind != YamlNode::Kind::map) {
      values_.add(node_, shown(node_) + " is given, expected is a map");
      return std::nullopt;
    }
    std::map<std::string, Value> all;
    for (const auto& entry : node_.entries) {
      const ValueReader values(field_.key + "." + entry.key, field_.range, problems_);
      if (const auto value = (values.*read)(entry.value)) all[entry.key] = *value;
    }
    return all;
  }

  const Field& field_;
  const YamlNode& node_;
  Problems& problems_;
  ValueReader values_;
};

void clear(const Field& field) {
  std::visit(
      [](const auto& member) {
        using Member = std::decay_t<decltype(member)>;
        if constexpr (std::is_same_v<Member, BytesMember>) {
          member.value->reset();
        } else if constexpr (requires { member->reset(); }) {
          member->reset();
        }
      },
      field.member);
}

bool is_section(const std::vector<Field>& fields, const std::string& key) {
  return std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.key.starts_with(key + "."); });
}

void read_section(const std::vector<Field>& fields, const std::string& section, const YamlNode& node, Places& places,
                  Problems& problems) {
  if (node.kind != YamlNode::Kind::map) {
    const bool whole = section.empty();
    problems.add(node.place, section,
                 shown(node) + " is given, expected is " +
                     (whole ? "a map of recipe keys" : "a section: " + section_example(fields, section)));
    return;
  }
  for (const auto& [name, place, value] : node.entries) {
    const auto key = section.empty() ? name : section + "." + name;
    const bool dotted = name.find('.') != std::string::npos;
    if (const auto* field = dotted ? nullptr : find_field(fields, key)) {
      places[key] = value.place;
      read_field(*field, value, problems);
    } else if (!dotted && is_section(fields, key) && problems.all_good({key})) {
      read_section(fields, key, value, places, problems);
    } else if (problems.all_good({key})) {
      problems.add(place, key, unknown_key_text(fields, key));
    }
  }
}

/// model.config.<a>.<b>=value: sets one key of the map, whose other keys stay.
void read_config_key(const Field& field, const std::string& key, const YamlNode& node, Problems& problems) {
  const auto value = ValueReader(key, {}, problems).json(node);
  if (!value) return;
  auto& text = *std::get<JsonObjectMember>(field.member).text;
  auto config = parse_json(text, field.key);
  auto* target = &config;
  std::string rest = key.substr(kConfigPrefix.size());
  while (true) {
    const auto dot = rest.find('.');
    if (!target->is_object() && !target->is_null()) {
      problems.add(node.place, key, "this is no map in the keys given before, it cannot hold " + rest);
      return;
    }
    target = &(*target)[rest.substr(0, dot)];
    if (dot == std::string::npos) break;
    rest = rest.substr(dot + 1);
  }
  *target = *value;
  text = dump_json(config);
}

}  // namespace

void read_field(const Field& field, const YamlNode& node, Problems& problems) {
  if (node.kind == YamlNode::Kind::null && field.null_allowed) {
    clear(field);
  } else if (node.kind == YamlNode::Kind::null) {
    if (!problems.all_good({field.key})) return;  // an alias
    problems.add(node.place, field.key, "has no value; null does not stand for the default here, leave the key out");
  } else {
    std::visit(MemberReader(field, node, problems), field.member);
  }
}

void read_recipe(const std::vector<Field>& fields, const YamlNode& root, Places& places, Problems& problems) {
  read_section(fields, "", root, places, problems);
}

void read_overrides(const std::vector<Field>& fields, const std::vector<std::string>& overrides, Places& places,
                    Problems& problems) {
  std::set<std::string> seen;
  for (const auto& word : overrides) {
    const auto equal = word.find('=');
    const auto key = word.substr(0, equal);
    const Place place{"command line"};
    if (equal == std::string::npos) {
      problems.add(place, word, "expected is KEY=VALUE");
      continue;
    }
    if (!seen.insert(key).second) {
      problems.add(place, key, "given twice");
      continue;
    }
    const auto* field = find_field(fields, key);
    const bool config_key = key.starts_with(kConfigPrefix) && key.size() > kConfigPrefix.size();
    if (field == nullptr && !config_key) {
      problems.add(place, key,
                   is_section(fields, key) ? "is a section; name one of its keys: " + section_example(fields, key)
                                           : unknown_key_text(fields, key));
      continue;
    }
    const auto node = parse_override_value(key, word.substr(equal + 1), place, problems);
    if (field != nullptr) {
      read_field(*field, node, problems);
      places[key] = place;
    } else {
      read_config_key(*find_field(fields, "model.config"), key, node, problems);
      places["model.config"] = place;
    }
  }
}

}  // namespace assay
