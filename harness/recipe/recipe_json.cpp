#include "harness/recipe/recipe_json.h"

#include <algorithm>

#include "harness/core/files.h"
#include "harness/recipe/problems.h"
#include "harness/recipe/read_fields.h"
#include "harness/recipe/yaml_tree.h"

namespace assay {
namespace {

struct ToJson {
  template <class T>
  std::optional<Json> operator()(T* member) const {
    return Json(*member);
  }
  template <class T>
  std::optional<Json> operator()(std::optional<T>* member) const {
    return *member ? std::optional(Json(**member)) : std::nullopt;
  }
  std::optional<Json> operator()(std::string* member) const {
    return member->empty() ? std::nullopt : std::optional(Json(*member));
  }
  std::optional<Json> operator()(std::vector<DataPath>* member) const {
    const bool plain = std::all_of(member->begin(), member->end(), [](const auto& path) { return path.weight == 1; });
    Json list = Json::array();
    for (const auto& [path, weight] : *member) {
      list.push_back(plain ? Json(path) : Json{{"path", path}, {"weight", weight}});
    }
    return list;
  }
  std::optional<Json> operator()(const BytesMember& member) const { return (*this)(member.value); }
  std::optional<Json> operator()(const JsonObjectMember& member) const {
    return parse_json(*member.text, "model.config");
  }
  std::optional<Json> operator()(const ChoiceMember& member) const {
    const auto index = member.get();
    return index ? std::optional(Json(member.names[*index])) : std::nullopt;
  }
};

/// recipe_fields gives pointers to change members with; here they are only read.
std::vector<Field> fields_to_read(const Recipe& recipe) { return recipe_fields(const_cast<Recipe&>(recipe)); }

/// The object that holds the key, created where it is missing.
Json& member_at(Json& json, const std::string& key) {
  const auto dot = key.find('.');
  return dot == std::string::npos ? json[key] : member_at(json[key.substr(0, dot)], key.substr(dot + 1));
}

YamlNode node_of(const Json& json) {
  YamlNode node;
  node.place.source = "recipe as JSON";
  if (json.is_object()) {
    node.kind = YamlNode::Kind::map;
    for (const auto& [key, value] : json.items()) node.entries.push_back({key, node.place, node_of(value)});
  } else if (json.is_array()) {
    node.kind = YamlNode::Kind::list;
    for (const auto& value : json) node.items.push_back(node_of(value));
  } else if (!json.is_null()) {
    node.kind = YamlNode::Kind::scalar;
    node.quoted = json.is_string();
    node.text = json.is_string() ? json.get<std::string>() : dump_json(json);
  }
  return node;
}

}  // namespace

std::optional<Json> field_to_json(const Field& field) {
  auto value = std::visit(ToJson{}, field.member);
  if (!value && field.null_allowed) return Json(nullptr);
  return value;
}

Json recipe_to_json(const Recipe& recipe) {
  Json json = Json::object();
  for (const auto& field : fields_to_read(recipe)) {
    if (auto value = field_to_json(field)) member_at(json, field.key) = std::move(*value);
  }
  return json;
}

Recipe recipe_from_json(const Json& json) {
  Recipe recipe;
  Problems problems;
  Places places;
  read_recipe(recipe_fields(recipe), node_of(json), places, problems);
  problems.throw_if_any();
  return recipe;
}

std::string recipe_hash(const Recipe& recipe) {
  auto json = recipe_to_json(recipe);
  for (const auto* key : {"name", "resume", "accept", "plan"}) json.erase(key);
  return sha256_of(dump_json(json));
}

std::vector<RecipeDifference> recipe_differences(const Recipe& left, const Recipe& right) {
  std::vector<RecipeDifference> differences;
  const auto left_fields = fields_to_read(left);
  const auto right_fields = fields_to_read(right);
  for (std::size_t i = 0; i < left_fields.size(); ++i) {
    const auto left_text = dump_json(field_to_json(left_fields[i]).value_or(Json(nullptr)));
    const auto right_text = dump_json(field_to_json(right_fields[i]).value_or(Json(nullptr)));
    if (left_text != right_text) differences.push_back({left_fields[i].key, left_text, right_text});
  }
  return differences;
}

std::vector<std::string> differing_keys(const Recipe& left, const Recipe& right) {
  std::vector<std::string> keys;
  for (const auto& [key, left_text, right_text] : recipe_differences(left, right)) {
    keys.push_back(key + ": " + left_text + " and " + right_text);
  }
  return keys;
}

}  // namespace assay
