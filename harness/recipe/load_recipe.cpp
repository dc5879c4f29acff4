#include "harness/recipe/load_recipe.h"

#include <algorithm>
#include <cctype>

#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/recipe/problems.h"
#include "harness/recipe/read_fields.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/recipe_json.h"
#include "harness/recipe/resolve.h"
#include "harness/recipe/yaml_tree.h"

namespace assay {
namespace {

std::string origin_text(const Places& places, const std::string& key) {
  const auto found = places.find(key);
  if (found == places.end()) return "default";
  const auto& place = found->second;
  return place.line == 0 ? place.source : place.source + ":" + std::to_string(place.line);
}

/// Text that any YAML reader takes for text without quotes.
bool is_plain_text(const std::string& text) {
  const auto allowed = [](unsigned char letter) { return std::isalnum(letter) || letter == '_' || letter == '/'; };
  const auto inner = [&](unsigned char letter) { return allowed(letter) || letter == '.' || letter == '-'; };
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) ||
      !allowed(static_cast<unsigned char>(text[0]))) {
    return false;
  }
  std::string lower(text.size(), ' ');
  std::transform(text.begin(), text.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  for (const auto* word : {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "inf", "nan", "infinity"}) {
    if (lower == word) return false;
  }
  return std::all_of(text.begin(), text.end(), inner);
}

std::string yaml_text(const Json& json) {
  std::string text;
  if (json.is_string()) return is_plain_text(json.get<std::string>()) ? json.get<std::string>() : dump_json(json);
  if (json.is_array()) {
    for (const auto& item : json) text += (text.empty() ? "" : ", ") + yaml_text(item);
    return "[" + text + "]";
  }
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      text += (text.empty() ? "" : ", ") + yaml_text(Json(key)) + ": " + yaml_text(value);
    }
    return "{" + text + "}";
  }
  return dump_json(json);
}

/// A file's name may hold a newline, which would end the comment.
std::string comment_text(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return std::iscntrl(letter) != 0; }, '?');
  return text;
}

}  // namespace

LoadedRecipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                         const ResolveFacts& facts) {
  LoadedRecipe loaded;
  loaded.recipe.name = path.stem().string();
  Problems problems;
  Places places;
  const auto fields = recipe_fields(loaded.recipe);
  read_recipe(fields, parse_yaml(read_text_file(path), path.string(), problems), places, problems);
  read_overrides(fields, overrides, places, problems);
  for (const auto& field : fields) loaded.origins[field.key] = origin_text(places, field.key);
  resolve_recipe(loaded, facts, places, {path.string(), 1, 1}, problems);
  problems.throw_if_any();
  return loaded;
}

Recipe with_overrides(const Recipe& resolved, const std::vector<std::string>& overrides) {
  LoadedRecipe loaded;
  loaded.recipe = resolved;
  const Place whole{resolved.name};
  Problems problems;
  Places places;
  const auto fields = recipe_fields(loaded.recipe);
  for (const auto& field : fields) places[field.key] = whole;
  read_overrides(fields, overrides, places, problems);
  ResolveFacts facts;
  facts.runs = false;
  resolve_recipe(loaded, facts, places, whole, problems);
  problems.throw_if_any();
  return loaded.recipe;
}

std::string recipe_to_yaml(const LoadedRecipe& loaded) {
  auto recipe = loaded.recipe;
  std::string text;
  std::string section;
  for (const auto& field : recipe_fields(recipe)) {
    const auto value = field_to_json(field);
    if (!value) continue;
    const auto dot = field.key.rfind('.');
    const auto field_section = dot == std::string::npos ? "" : field.key.substr(0, dot);
    const auto depth = std::count(field.key.begin(), field.key.end(), '.');
    if (field_section != section && depth > 0 && !section.starts_with(field_section + ".")) {
      const auto inner = field_section.rfind('.');
      const auto name = inner == std::string::npos ? field_section : field_section.substr(inner + 1);
      text += std::string(static_cast<std::size_t>(depth - 1) * 2, ' ') + name + ":\n";
    }
    section = field_section;
    const auto origin = loaded.origins.find(field.key);
    text += std::string(static_cast<std::size_t>(depth) * 2, ' ') + field.key.substr(dot + 1) + ": " +
            yaml_text(*value) + (origin == loaded.origins.end() ? "" : "  # " + comment_text(origin->second)) + "\n";
  }
  return text;
}

}  // namespace assay
