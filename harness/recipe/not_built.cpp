#include "harness/recipe/not_built.h"

#include <algorithm>
#include <string_view>

#include "harness/core/json.h"
#include "harness/recipe/recipe_fields.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace {

struct Row {
  std::string_view key;                        ///< one key, or a whole section if it ends in '.'
  std::vector<std::string_view> built;         ///< values beside the default
  std::vector<std::string_view> planned = {};  ///< values that can be planned, not run
};

/// Keys of parts that are not built yet. Building a part shortens this table.
const std::vector<Row>& not_built_table() {
  static const std::vector<Row> rows{
      {"mode", {"full"}},
      {"device", {}, {"cuda"}},
      {"model.attention", {"flash", "efficient"}},
      {"tokenizer.path", {"bytes"}},
      {"data.format", {"text", "batches", "synthetic"}},
      {"data.packing", {}},
      {"data.template", {}},
      {"train.epochs", {}},
      {"optimizer.name", {}},
      {"lora.", {}},
      {"quantization.", {}},
      {"parallel.backend", {"gloo"}, {"nccl"}},
      {"parallel.cpu_binding", {}},
      {"checkpoint.minutes", {}},
      {"checkpoint.keep_best", {}},
      {"checkpoint.async", {}},
      {"checkpoint.path", {}},
      {"accept.stages", {"machine", "estimate", "collective", "single", "train", "memory", "utilization"}},
      {"plan.", {}},
      {"inference.", {}},
  };
  return rows;
}

std::vector<std::string_view> supported(const Row& row, bool runs) {
  auto values = row.built;
  if (!runs) values.insert(values.end(), row.planned.begin(), row.planned.end());
  return values;
}

bool is_one_of(const std::vector<std::string_view>& supported, const Json& value) {
  if (value.is_array()) {
    return std::all_of(value.begin(), value.end(), [&](const Json& item) { return is_one_of(supported, item); });
  }
  return value.is_string() &&
         std::find(supported.begin(), supported.end(), value.get<std::string>()) != supported.end();
}

std::string sentence(const std::vector<std::string_view>& supported, const Json& value, const Json& default_value) {
  std::string built;
  if (!value.is_array() && default_value != "auto" && !default_value.is_null()) built = dump_json(default_value);
  for (const auto& name : supported) built += (built.empty() ? "" : ", ") + std::string(name);
  std::erase(built, '"');
  const auto shown_value = value.is_string() ? value.get<std::string>() : dump_json(value);
  return shown_value + " is not supported by this version" +
         (built.empty() ? "; leave the key out" : " (supported: " + built + ")");
}

/// What no single value of a key says.
void find_in_data_path(const DataOptions& data, std::vector<NotBuilt>& found) {
  const bool weighted =
      std::any_of(data.path.begin(), data.path.end(), [](const auto& entry) { return entry.weight != 1; });
  if (weighted) found.push_back({"data.path", "a weight other than 1 is not supported by this version; leave it out"});
  if (data.format == DataFormat::batches && data.path.size() > 1) {
    found.push_back({"data.path", "a second file of batches is not supported by this version; name one"});
  }
}

}  // namespace

std::vector<NotBuilt> find_not_built(const Recipe& recipe, bool runs) {
  Recipe asked = recipe;
  Recipe defaults;
  const auto asked_fields = recipe_fields(asked);
  const auto default_fields = recipe_fields(defaults);
  std::vector<NotBuilt> found;
  find_in_data_path(recipe.data, found);
  for (const auto& row : not_built_table()) {
    const auto values = supported(row, runs);
    for (std::size_t i = 0; i < asked_fields.size(); ++i) {
      const auto& key = asked_fields[i].key;
      if (row.key.ends_with('.') ? !key.starts_with(row.key) : key != row.key) continue;
      const auto value = field_to_json(asked_fields[i]).value_or(Json(nullptr));
      const auto default_value = field_to_json(default_fields[i]).value_or(Json(nullptr));
      if (value == default_value || is_one_of(values, value)) continue;
      found.push_back({key, sentence(values, value, default_value)});
    }
  }
  return found;
}

}  // namespace assay
