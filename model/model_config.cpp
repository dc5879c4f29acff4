#include "model/model_config.h"

#include <cmath>
#include <numbers>
#include <set>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "model/config_reader.h"

namespace assay {
namespace {

constexpr double kMostParameters = 1e15;  // keeps every byte count within 64 bits

RopeType rope_type_from(ConfigReader& keys) {
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

RopeParameters read_rope(ConfigReader& top) {
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
  ConfigReader keys = top.nested(*nested, "rope settings");
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
      "architectures",        "bos_token_id", "eos_token_id",  "pad_token_id",    "dtype",    "torch_dtype",
      "transformers_version", "use_cache",    "_name_or_path", "tokenizer_class", "auto_map", "max_length"};
  return keys;
}

void check_shape(const ModelConfig& config, ConfigReader& keys) {
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    keys.refuse("num_key_value_heads",
                "must divide num_attention_heads (" + std::to_string(config.num_attention_heads) + ")");
  }
  if (config.head_dim % 2 != 0 && !config.learned_positions)
    keys.refuse("head_dim", "must be even for rotary embedding, it is " + std::to_string(config.head_dim));
  const auto product = [](auto... sizes) { return (static_cast<double>(sizes) * ...); };
  const double block =
      product(config.hidden_size, config.head_dim, 2 * (config.num_attention_heads + config.num_key_value_heads)) +
      product(3, config.hidden_size, config.intermediate_size);
  const double parameters =
      product(config.num_hidden_layers, block) + product(2, config.vocab_size, config.hidden_size);
  if (parameters > kMostParameters) keys.fail("these sizes make more than 1e15 parameters; look for a wrong number");
}

/// Keys of families that say which rows a token may look at: nothing that is counted here depends on it.
void read_sliding_window(ModelConfig& config, ConfigReader& keys) {
  if (config.model_type == "llama") {
    if (keys.find("sliding_window") != nullptr)
      keys.refuse("sliding_window", "is a setting this program does not train");
    return;
  }
  if (config.model_type != "mistral") keys.require("use_sliding_window", false);
  keys.find("max_window_layers");
  const Json* window = keys.find("sliding_window");
  if (window != nullptr && config.model_type == "mistral") {
    config.notes.push_back("sliding_window " + dump_json(*window) + " has no effect on what is counted");
  }
}

void read_llama_family(ModelConfig& config, ConfigReader& keys) {
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
  config.qkv_bias = config.model_type == "qwen2";
  config.qk_norm = config.model_type == "qwen3";
  check_shape(config, keys);
  read_sliding_window(config, keys);
  keys.require("hidden_act", "silu");
  keys.require("attention_dropout", 0.0);
  keys.require("attention_bias", false);
  keys.require("mlp_bias", false);
  keys.require("pretraining_tp", 1);
}

void read_gpt2(ModelConfig& config, ConfigReader& keys) {
  config.vocab_size = keys.integer("vocab_size", std::nullopt);
  config.hidden_size = keys.integer("n_embd", std::nullopt);
  config.intermediate_size = keys.integer("n_inner", 4 * config.hidden_size);
  config.num_hidden_layers = keys.integer("n_layer", std::nullopt);
  config.num_attention_heads = config.num_key_value_heads = keys.integer("n_head", std::nullopt);
  if (config.hidden_size % config.num_attention_heads != 0) {
    keys.refuse("n_head", "must divide n_embd (" + std::to_string(config.hidden_size) + ")");
  }
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.max_position_embeddings = keys.integer("n_positions", 1024);
  config.initializer_range = keys.number("initializer_range", 0.02);
  config.tie_word_embeddings = keys.boolean("tie_word_embeddings", true);
  config.qkv_bias = config.other_biases = config.learned_positions = true;
  config.gated_mlp = false;
  check_shape(config, keys);
  keys.number("layer_norm_epsilon", 1e-5);
  keys.require("activation_function", "gelu_new");
  keys.require("add_cross_attention", false);
}

ModelConfig read_config(const Json& json, const std::string& where, ErrorKind kind,
                        const std::vector<std::string>& added = {}) {
  ModelConfig config;
  ConfigReader keys(json, where, kind, config.notes);
  config.model_type = keys.text("model_type", std::nullopt);
  if (config.model_type == "gpt2") {
    read_gpt2(config, keys);
  } else if (config.model_type == "llama" || config.model_type == "mistral" || config.model_type == "qwen2" ||
             config.model_type == "qwen3") {
    read_llama_family(config, keys);
  } else {
    keys.refuse("model_type",
                "is a model family this program does not know; llama is trained, mistral, qwen2, qwen3 and gpt2 are "
                "estimated by formula");
  }
  for (const char* key :
       {"num_experts", "num_local_experts", "num_experts_per_tok", "quantization_config", "use_parallel_residual"}) {
    if (keys.find(key) != nullptr) keys.refuse(key, "is a setting this program does not train");
  }
  keys.refuse_unknown(added, harmless_keys());
  keys.note_unknown(harmless_keys());
  return config;
}

}  // namespace

std::vector<BlockMatrix> ModelConfig::block_matrices() const {
  const std::int64_t queries = num_attention_heads * head_dim;
  const std::int64_t keys = num_key_value_heads * head_dim;
  if (!gated_mlp) {
    return {{"attn.c_attn", hidden_size, queries + 2 * keys},
            {"attn.c_proj", queries, hidden_size},
            {"mlp.c_fc", hidden_size, intermediate_size},
            {"mlp.c_proj", intermediate_size, hidden_size}};
  }
  return {{"self_attn.q_proj", hidden_size, queries},        {"self_attn.k_proj", hidden_size, keys},
          {"self_attn.v_proj", hidden_size, keys},           {"self_attn.o_proj", queries, hidden_size},
          {"mlp.gate_proj", hidden_size, intermediate_size}, {"mlp.up_proj", hidden_size, intermediate_size},
          {"mlp.down_proj", intermediate_size, hidden_size}};
}

std::int64_t ModelConfig::num_embedding_parameters() const {
  return (vocab_size + (learned_positions ? max_position_embeddings : 0)) * hidden_size;
}

std::int64_t ModelConfig::num_block_parameters() const {
  const std::int64_t norm = (other_biases ? 2 : 1) * hidden_size;
  std::int64_t parameters = 2 * norm + (qk_norm ? 2 * head_dim : 0);
  for (const auto& matrix : block_matrices()) parameters += matrix.in * matrix.out;
  if (qkv_bias) parameters += (num_attention_heads + 2 * num_key_value_heads) * head_dim;
  if (other_biases) parameters += hidden_size + intermediate_size + hidden_size;
  return parameters;
}

std::int64_t ModelConfig::num_head_parameters() const {
  return (other_biases ? 2 : 1) * hidden_size + (tie_word_embeddings ? 0 : vocab_size * hidden_size);
}

std::int64_t ModelConfig::num_parameters() const {
  return num_embedding_parameters() + num_hidden_layers * num_block_parameters() + num_head_parameters();
}

std::int64_t ModelConfig::num_matmul_parameters() const {
  std::int64_t block = 0;
  for (const auto& matrix : block_matrices()) block += matrix.in * matrix.out;
  return num_hidden_layers * block + vocab_size * hidden_size;
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
  json.update(changes, /*merge_objects=*/true);
  return read_config(json, path.string() + " with model.config " + dump_json(changes), ErrorKind::recipe, added);
}

bool is_trained(const ModelConfig& config) { return config.model_type == "llama"; }

void require_trained(const ModelConfig& config) {
  if (is_trained(config)) return;
  throw Error(ErrorKind::recipe, "model_type " + config.model_type +
                                     " is estimated by formula only, this version does not train it; llama is trained");
}

}  // namespace assay
