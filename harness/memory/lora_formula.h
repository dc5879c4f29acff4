#pragma once

#include <cstdint>
#include <vector>

#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

/// Two matrices beside one of a block, A [rank, in] and B [out, rank] (Hu et al. 2021, arXiv 2106.09685, section 4.1).
struct Adapter {
  BlockMatrix matrix;
  std::int64_t rank = 0;

  std::int64_t num_parameters() const { return rank * (matrix.in + matrix.out); }
};

/// The adapters of block `layer`. Names are matched as PEFT does (tuners_utils.check_target_module_exists): an entry of
/// target_modules is the last part of a name, "all-linear", or a pattern for the whole of it, such as
/// "model.layers.3.self_attn.q_proj"; rank_pattern likewise. Throws Error{recipe} for a pattern that is none.
std::vector<Adapter> block_adapters(const LoraOptions& lora, const ModelConfig& config, std::int64_t layer);

/// Of the recipe's mode: all, none (inference), or those of the adapters and of the copies in modules_to_save.
std::int64_t num_trained_parameters(const Recipe& recipe, const ModelConfig& config);

/// Whether modules_to_save trains a copy of the embedding, or of the head's matrix.
bool trains_embedding(const Recipe& recipe);
bool trains_head(const Recipe& recipe);

bool trains_adapters(Mode mode);

/// `numel` weights as NF4: half a byte each, and a scale for each block of `block_size`: 4 bytes, or with double
/// quantization 1 byte and 4 for each 256 scales (Dettmers et al. 2023, arXiv 2305.14314, section 3: 4.5 and 4.127 bits
/// with blocks of 64).
std::int64_t nf4_bytes(const QuantizationOptions& quantization, std::int64_t numel);

}  // namespace assay
