#pragma once

#include <filesystem>

#include "model/transformer.h"

namespace assay {

/// Fills the parameters from a Hugging Face model folder, converting fp32, fp16 and bf16 files to the parameters'
/// dtype. Throws Error{data} that names every parameter that is missing or has another shape, and every tensor of the
/// folder that the model has no place for. With tied embeddings lm_head.weight may be there if it equals the embedding.
void load_model_weights(Transformer& model, const std::filesystem::path& folder);

}  // namespace assay
