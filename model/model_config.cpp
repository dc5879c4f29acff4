#include "model/model_config.h"

#include <cmath>
#include <numbers>
#include <optional>
#include <set>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/core/nearest.h"

namespace assay {
namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 40;
constexpr double kMostParameters = 1e15;  // keeps every byte count within 64 bits

// Reads keys of one JSON object; every problem names the file, the key and the value.
class KeyReader {
 public:
  KeyReader(const Json& object, std::string where, ErrorKind kind, std::vector<std::string>& notes)
      : object_(object), where_(std::move(where)), kind_(kind), notes_(notes) {}

  /// The same for an object within this one.
  KeyReader nested(const Json& object, const std::string& name) const {
    return {object, where_ + ": " + name, kind_, notes_};
  }

  [[noreturn]] void fail(const std::string& reason) const { throw Error(kind_, where_ + ": " + reason); }

  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const {
    const auto found = object_.find(key);
    fail(key + (found == object_.end() ? "" : ": " + dump_json(*found)) + ": " + reason);
  }

  const Json* find(const std::string& key) {
    known_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::int64_t integer(const std::string& key, std::optional<std::int64_t> fallback, std::int64_t least = 1) {
    const Json* value = find(key);
    if (value == nullptr) return use_default(key, fallback);
    if (!value->is_number_integer()) refuse(key, "must be a whole number");
    const bool too_large =
        value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(kLargest);
    if (too_large || value->get<std::int64_t>() < least || value->get<std::int64_t>() > kLargest) {
      refuse(key, "must be between " + std::to_string(least) + " and " + std::to_string(kLargest));
    }
    return value->get<std::int64_t>();
  }

  double number(const std::string& key, std::optional<double> fallback) {
    const Json* value = find(key);
    if (value == nullptr) return use_default(key, fallback);
    if (!value->is_number()) refuse(key, "must be a number");
    const double result = value->get<double>();
    if (!(result > 0) || !std::isfinite(result)) refuse(key, "must be above 0");
    return result;
  }

  bool boolean(const std::string& key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return use_default(key, std::optional<bool>(fallback));
    if (!value->is_boolean()) refuse(key, "must be true or false");
    return value->get<bool>();
  }

  std::string text(const std::string& key, std::optional<std::string> fallback) {
    const Json* value = find(key);
    if (value == nullptr) return use_default(key, fallback);
    if (!value->is_string()) refuse(key, "must be a text");
    return value->get<std::string>();
  }

  // A setting that changes the model in a way this program does not compute must have its neutral value.
  void require(const std::string& key, const Json& neutral) {
    const Json* value = find(key);
    if (value != nullptr && *value != neutral) refuse(key, "is not supported, only " + dump_json(neutral) + " is");
  }

  // Keys that the user adds to the file's own: one without an effect is a slip.
  void refuse_unknown(const std::vector<std::string>& added, const std::set<std::string>& harmless) const {
    std::vector<std::string> names(known_.begin(), known_.end());
    names.insert(names.end(), harmless.begin(), harmless.end());
    for (const auto& key : added) {
      if (known_.count(key) != 0 || harmless.count(key) != 0) continue;
      const auto nearest = nearest_name(key, names);
      refuse(key, "is no key of config.json that has an effect here" +
                      (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
    }
  }

  void note_unknown(const std::set<std::string>& harmless) {
    for (const auto& item : object_.items()) {
      if (known_.count(item.key()) == 0 && harmless.count(item.key()) == 0) {
        notes_.push_back(where_ + ": " + item.key() + " is unknown and has no effect");
      }
    }
  }

 private:
  template <class T>
  T use_default(const std::string& key, const std::optional<T>& fallback) {
    if (!fallback) fail(key + " is missing");
    notes_.push_back(where_ + ": " + key + " is absent, the default is taken");
    return *fallback;
  }

  const Json& object_;
  std::string where_;
  ErrorKind kind_;
  std::vector<std::string>& notes_;
  std::set<std::string> known_;
};

RopeType rope_type_from(KeyReader& keys) {
  const Json* type = keys.find("rope_type");
  const Json* legacy = keys.find("type");
  if (type == nullptr) type = legacy;
  if (type == nullptr) return RopeType::standard;
  if (*type == "default") return RopeType::standard;
  if (*type == "linear") return RopeType::linear;
  if (*type == "llama3") return RopeType::llama3;
  keys.refuse(keys.find("rope_type") != nullptr ? "rope_type" : "type",
              "is a rotary scaling this program does not have; default, linear and llama3 are supported");
}

RopeParameters read_rope(KeyReader& top) {
  RopeParameters rope;
  const Json* nested = top.find("rope_parameters");
  const Json* scaling = top.find("rope_scaling");
  if (nested != nullptr && scaling != nullptr && *nested != *scaling) {
    top.refuse("rope_scaling", "contradicts rope_parameters; leave one of them out");
  }
  if (nested == nullptr) nested = scaling;
  const Json* top_theta = top.find("rope_theta");
  if (nested == nullptr) {
    rope.theta = top.number("rope_theta", 10000.0);
    return rope;
  }
  if (!nested->is_object()) top.refuse("rope_parameters", "must be an object");
  KeyReader keys = top.nested(*nested, "rope settings");
  const Json* inner_theta = keys.find("rope_theta");
  if (inner_theta != nullptr && top_theta != nullptr && *inner_theta != *top_theta) {
    top.refuse("rope_theta", "contradicts " + dump_json(*inner_theta) + " in rope_parameters; leave one of them out");
  }
  rope.theta = inner_theta != nullptr ? keys.number("rope_theta", 10000.0) : top.number("rope_theta", 10000.0);
  rope.type = rope_type_from(keys);
  if (rope.type != RopeType::standard) rope.factor = keys.number("factor", std::nullopt);
  if (rope.type == RopeType::llama3) {
    rope.low_freq_factor = keys.number("low_freq_factor", std::nullopt);
    rope.high_freq_factor = keys.number("high_freq_factor", std::nullopt);
    rope.original_max_position_embeddings = keys.integer("original_max_position_embeddings", std::nullopt);
    if (rope.high_freq_factor <= rope.low_freq_factor) keys.refuse("high_freq_factor", "must be above low_freq_factor");
  }
  keys.require("partial_rotary_factor", 1.0);
  keys.note_unknown({});
  return rope;
}

const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> keys{
      "architectures", "attention_dropout",    "bos_token_id", "eos_token_id",  "pad_token_id",    "dtype",
      "torch_dtype",   "transformers_version", "use_cache",    "_name_or_path", "tokenizer_class", "auto_map",
      "max_length"};
  return keys;
}

void check_shape(const ModelConfig& config, KeyReader& keys) {
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    keys.refuse("num_key_value_heads",
                "must divide num_attention_heads (" + std::to_string(config.num_attention_heads) + ")");
  }
  if (config.head_dim % 2 != 0)
    keys.refuse("head_dim", "must be even for rotary embedding, it is " + std::to_string(config.head_dim));
  const auto product = [](auto... sizes) { return (static_cast<double>(sizes) * ...); };
  const double block =
      product(config.hidden_size, config.head_dim, 2 * (config.num_attention_heads + config.num_key_value_heads)) +
      product(3, config.hidden_size, config.intermediate_size);
  const double parameters =
      product(config.num_hidden_layers, block) + product(2, config.vocab_size, config.hidden_size);
  if (parameters > kMostParameters) keys.fail("these sizes make more than 1e15 parameters; look for a wrong number");
}

ModelConfig read_config(const Json& json, const std::string& where, ErrorKind kind,
                        const std::vector<std::string>& added = {}) {
  ModelConfig config;
  KeyReader keys(json, where, kind, config.notes);
  config.model_type = keys.text("model_type", std::nullopt);
  if (config.model_type != "llama")
    keys.refuse("model_type", "is a model family this program does not train; llama is supported");
  config.vocab_size = keys.integer("vocab_size", std::nullopt);
  config.hidden_size = keys.integer("hidden_size", std::nullopt);
  config.intermediate_size = keys.integer("intermediate_size", std::nullopt);
  config.num_hidden_layers = keys.integer("num_hidden_layers", std::nullopt);
  config.num_attention_heads = keys.integer("num_attention_heads", std::nullopt);
  config.num_key_value_heads = keys.integer("num_key_value_heads", config.num_attention_heads);
  if (keys.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0) {
    keys.refuse("num_attention_heads",
                "must divide hidden_size (" + std::to_string(config.hidden_size) + "), or head_dim must be given");
  }
  config.head_dim = keys.integer("head_dim", config.hidden_size / config.num_attention_heads);
  config.max_position_embeddings = keys.integer("max_position_embeddings", 2048);
  config.rms_norm_eps = keys.number("rms_norm_eps", 1e-6);
  config.initializer_range = keys.number("initializer_range", 0.02);
  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  config.rope = read_rope(keys);
  check_shape(config, keys);
  keys.require("hidden_act", "silu");
  keys.require("attention_bias", false);
  keys.require("mlp_bias", false);
  keys.require("pretraining_tp", 1);
  for (const char* key : {"num_experts", "num_local_experts", "num_experts_per_tok", "quantization_config",
                          "sliding_window", "use_parallel_residual"}) {
    if (keys.find(key) != nullptr) keys.refuse(key, "is a setting this program does not train");
  }
  keys.refuse_unknown(added, harmless_keys());
  keys.note_unknown(harmless_keys());
  return config;
}

}  // namespace

std::int64_t ModelConfig::num_matmul_parameters() const {
  const std::int64_t attention = hidden_size * head_dim * (2 * num_attention_heads + 2 * num_key_value_heads);
  const std::int64_t block = attention + 3 * hidden_size * intermediate_size;
  return num_hidden_layers * block + vocab_size * hidden_size;
}

std::int64_t ModelConfig::num_parameters() const {
  const std::int64_t embedding = tie_word_embeddings ? 0 : vocab_size * hidden_size;
  return num_matmul_parameters() + embedding + (2 * num_hidden_layers + 1) * hidden_size;
}

double ModelConfig::model_flops_per_token(std::int64_t sequence_length) const {
  const double attention = 6.0 * static_cast<double>(num_hidden_layers) *
                           static_cast<double>(num_attention_heads * head_dim) * static_cast<double>(sequence_length);
  return 6.0 * static_cast<double>(num_matmul_parameters()) + attention;
}

std::vector<float> rotary_frequencies(const RopeParameters& rope, std::int64_t head_dim) {
  std::vector<float> frequencies;
  const double low_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.low_freq_factor;
  const double high_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.high_freq_factor;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const double frequency = std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(head_dim));
    const double wavelength = 2 * std::numbers::pi / frequency;
    double scaled = frequency;
    if (rope.type == RopeType::linear) scaled = frequency / rope.factor;
    if (rope.type == RopeType::llama3 && wavelength > low_wavelength) {
      scaled = frequency / rope.factor;
    } else if (rope.type == RopeType::llama3 && wavelength >= high_wavelength) {
      const double smooth =
          (static_cast<double>(rope.original_max_position_embeddings) / wavelength - rope.low_freq_factor) /
          (rope.high_freq_factor - rope.low_freq_factor);
      scaled = (1 - smooth) * frequency / rope.factor + smooth * frequency;
    }
    frequencies.push_back(static_cast<float>(scaled));
  }
  return frequencies;
}

ModelConfig load_model_config(const std::filesystem::path& folder, const std::string& overrides) {
  const auto path = folder / "config.json";
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::data,
                "there is no " + path.string() + "; model.path must name a folder with a Hugging Face config.json");
  }
  Json json = parse_json(read_text_file(path), path.string());
  if (!json.is_object()) throw Error(ErrorKind::data, path.string() + ": must hold a JSON object");
  const Json changes = parse_json(overrides, "model.config");
  if (!changes.is_object())
    throw Error(ErrorKind::recipe, "model.config: " + overrides + ": must be an object of config keys");
  if (changes.empty()) return read_config(json, path.string(), ErrorKind::data);
  std::vector<std::string> added;
  for (const auto& item : changes.items()) {
    if (!json.contains(item.key())) added.push_back(item.key());
  }
  json.update(changes);
  return read_config(json, path.string() + " with model.config " + dump_json(changes), ErrorKind::recipe, added);
}

}  // namespace assay
