#include "harness/memory/lora_formula.h"

#include <algorithm>
#include <regex>
#include <string>

#include "harness/core/error.h"

namespace assay {
namespace {

bool ends_name(const std::string& name, const std::string& entry) {
  return name == entry || name.ends_with("." + entry);
}

bool matches(const std::string& name, const std::string& entry, const std::string& key) {
  if (ends_name(name, entry)) return true;
  if (entry.find_first_of("*+?()[]{}|^$\\") == std::string::npos) return false;  // a plain name
  try {
    return std::regex_match(name, std::regex(entry));
  } catch (const std::regex_error&) {
    throw Error(ErrorKind::recipe, key + ": " + entry + " is neither the end of a module's name nor a pattern");
  }
}

bool any_matches(const std::string& name, const std::vector<std::string>& entries, const std::string& key) {
  return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return matches(name, entry, key); });
}

bool names_any(const std::vector<std::string>& entries, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return ends_name(entry, name); });
  });
}

}  // namespace

bool trains_adapters(Mode mode) { return mode == Mode::lora || mode == Mode::qlora; }

std::vector<Adapter> block_adapters(const LoraOptions& lora, const ModelConfig& config, std::int64_t layer) {
  const std::string prefix =
      (config.model_type == "gpt2" ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
  const bool all = lora.target_modules == std::vector<std::string>{"all-linear"};
  std::vector<Adapter> adapters;
  for (const auto& matrix : config.block_matrices()) {
    const std::string name = prefix + matrix.name;
    if (!all && !any_matches(name, lora.target_modules, "lora.target_modules")) continue;
    std::int64_t rank = lora.r;
    for (const auto& [entry, other_rank] : lora.rank_pattern) {
      if (matches(name, entry, "lora.rank_pattern")) rank = other_rank;
    }
    adapters.push_back({matrix, rank});
  }
  return adapters;
}

bool trains_embedding(const Recipe& recipe) {
  if (!trains_adapters(recipe.mode)) return recipe.mode != Mode::inference;
  return names_any(recipe.lora.modules_to_save, {"embed_tokens", "wte"});
}

bool trains_head(const Recipe& recipe) {
  if (!trains_adapters(recipe.mode)) return recipe.mode != Mode::inference;
  return names_any(recipe.lora.modules_to_save, {"lm_head"});
}

std::int64_t num_trained_parameters(const Recipe& recipe, const ModelConfig& config) {
  if (recipe.mode == Mode::inference) return 0;
  if (!trains_adapters(recipe.mode)) return config.num_parameters();
  std::int64_t parameters = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const auto& adapter : block_adapters(recipe.lora, config, layer)) parameters += adapter.num_parameters();
  }
  const std::int64_t table = config.vocab_size * config.hidden_size;
  return parameters + (trains_embedding(recipe) ? table : 0) + (trains_head(recipe) ? table : 0);
}

std::int64_t nf4_bytes(const QuantizationOptions& quantization, std::int64_t numel) {
  const auto groups = [](std::int64_t count, std::int64_t size) { return (count + size - 1) / size; };
  const std::int64_t scales = groups(numel, quantization.block_size);
  constexpr std::int64_t kScalesOfAGroup = 256;
  const std::int64_t scale_bytes =
      quantization.double_quant ? scales + 4 * groups(scales, kScalesOfAGroup) : 4 * scales;
  return groups(numel, 2) + scale_bytes;
}

}  // namespace assay
