#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "checkpoint/rank_file.h"
#include "harness/train/trainer.h"

namespace assay {

/// A tensor over the bytes of a file, not copied; the file must outlive it and must not be written to. F32, F16, BF16,
/// I64 and U8 only.
at::Tensor tensor_over(const TensorView& view);
at::Tensor tensor_over(const TensorInfo& info, std::string_view bytes);

/// Names of dtypes in safetensors files. Throws Error{internal} for one that is never written.
std::string safetensors_dtype(at::ScalarType dtype);

/// State tensors as a checkpoint takes them and gives them back. The tensors must stay alive.
std::vector<TensorBytes> bytes_of(const std::vector<StateTensor>& tensors);
std::vector<TensorDestination> destinations_of(const std::vector<StateTensor>& tensors);

}  // namespace assay
