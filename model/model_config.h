#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace assay {

enum class RopeType { standard, linear, llama3 };

/// Rotary settings of config.json, in either spelling (`rope_parameters`, or `rope_theta` with `rope_scaling`).
struct RopeParameters {
  RopeType type = RopeType::standard;
  double theta = 10000;
  double factor = 1;                                  ///< linear, llama3
  double low_freq_factor = 1;                         ///< llama3
  double high_freq_factor = 4;                        ///< llama3
  std::int64_t original_max_position_embeddings = 0;  ///< llama3
  bool operator==(const RopeParameters&) const = default;
};

/// A matrix of a block, y [out] = x [in] W^T, under Hugging Face's name.
struct BlockMatrix {
  std::string name;  ///< "self_attn.q_proj"
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// What config.json says, under Hugging Face's names of the Llama family (gpt2's own names are translated). A value;
/// checked by load_model_config. Sizes are known of every family that is read; see require_trained().
struct ModelConfig {
  std::string model_type = "llama";  ///< llama, mistral, qwen2, qwen3, gpt2
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  RopeParameters rope;
  bool qkv_bias = false;           ///< vectors added to query, key and value: qwen2, gpt2
  bool other_biases = false;       ///< and to every other product and norm: gpt2
  bool qk_norm = false;            ///< queries and keys are normed head by head: qwen3
  bool gated_mlp = true;           ///< gate, up and down; else up and down alone: gpt2
  bool learned_positions = false;  ///< a table of max_position_embeddings rows instead of rotation: gpt2
  std::vector<std::string> notes;  ///< keys that took the format's default, keys that have no effect here

  bool operator==(const ModelConfig&) const = default;

  /// Trainable parameters; a tied embedding counts once.
  std::int64_t num_parameters() const;

  /// Its parts: tables that are looked up; one block; final norm, and the head's matrix where it is not the
  /// embedding's.
  std::int64_t num_embedding_parameters() const;
  std::int64_t num_block_parameters() const;
  std::int64_t num_head_parameters() const;

  /// The matrices of each block, in the order of use.
  std::vector<BlockMatrix> block_matrices() const;

  /// Weights that multiply every token: all matrices but the embedding lookup, the head included also if it is tied.
  std::int64_t num_matmul_parameters() const;

  /// Forward and backward FLOPs of one token: 6 for each matmul weight, and 6 x layers x heads x head_dim x length for
  /// attention, of which only the causal half is computed. Recomputation is not counted.
  double model_flops_per_token(std::int64_t sequence_length) const;
};

/// The convention of model_flops_per_token in words, for reports.
inline constexpr const char* kFlopsConvention =
    "6 per matmul weight and token (head included, embedding lookup not), causal attention at half, no recomputation";

/// Rotary frequencies in fp32, head_dim / 2 of them: theta^(-2i/head_dim), scaled as the type asks (llama3: Llama 3.1's
/// wavelength bands as in transformers' modeling_rope_utils).
std::vector<float> rotary_frequencies(const RopeParameters& rope, std::int64_t head_dim);

/// Reads FOLDER/config.json with keys overridden by a JSON object (`overrides`). Throws Error{data} or, for overrides,
/// Error{recipe}: a key is missing, of a wrong type or out of range, one of
/// `overrides` is neither in the file nor known, keys contradict each other, or a setting is one that
/// this program does not know; the message names file, key and value.
ModelConfig load_model_config(const std::filesystem::path& folder, const std::string& overrides = "{}");

/// Throws Error{recipe} for a family whose sizes are known but whose network is not built: it is estimated by formula
/// only.
void require_trained(const ModelConfig& config);
bool is_trained(const ModelConfig& config);

}  // namespace assay
