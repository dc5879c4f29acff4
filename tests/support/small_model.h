#pragma once

#include "model/model_config.h"

namespace assay {

/// A Llama-type model that trains in milliseconds.
inline ModelConfig small_model_config() {
  ModelConfig config;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 16384;
  return config;
}

}  // namespace assay
