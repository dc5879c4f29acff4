#pragma once

#include <torch/library.h>

namespace assay {

/// Meta kernels, by what they stand for. Operators that LibTorch 2.11 has none for, and on CUDA also those whose
/// kernels take scratch. Results and scratch are allocated as the device's own kernel allocates them, in its order;
/// scratch dies with the call. Called once, at start-up.
void register_cpu_kernels(torch::Library& library);
void register_gradient_sum(torch::Library& library);
void register_cuda_attention(torch::Library& library);
void register_cuda_norms(torch::Library& library);
void register_cuda_embedding(torch::Library& library);
void register_cuda_products(torch::Library& library);
void register_cuda_reductions(torch::Library& library);

}  // namespace assay
