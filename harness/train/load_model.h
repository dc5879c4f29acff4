#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

#include "model/transformer.h"

namespace assay {

/// Takes the values of one parameter, as the file has them: its shape, fp32, fp16 or bf16, a view of the mapped file.
using ParameterWriter = std::function<void(std::size_t unit, std::size_t parameter, const at::Tensor& values)>;

/// Gives every parameter of the model from a Hugging Face model folder to `write`. Throws Error{data} that names every
/// parameter that is missing or has another shape, and every tensor of the folder that the model has no place for. With
/// tied embeddings lm_head.weight may be there if it equals the embedding.
void load_model_weights(Transformer& model, const std::filesystem::path& folder, const ParameterWriter& write);

}  // namespace assay
