#pragma once

#include <cstdint>
#include <string_view>

namespace assay {

/// Memory that CUDA operators of PyTorch 2.11 take beside their results, as arithmetic. Bytes as asked from the
/// allocator, each for one call, unless a comment says kept. No LibTorch.

/// What operators size their scratch by.
struct CudaCard {
  int compute_capability = 90;
  std::int64_t num_multiprocessors = 132;
  std::int64_t threads_per_multiprocessor = 2048;
};

/// The data-center card of a compute capability (80 for 8.0); of the nearest older one if it is not listed.
CudaCard cuda_card(int compute_capability);

/// Where a figure comes from.
struct CudaScratchRow {
  std::string_view operators;
  std::string_view scratch;
  std::string_view source;
};

/// Everything this file knows; docs/cuda_scratch.md shows it.
inline constexpr CudaScratchRow kCudaScratchRows[] = {
    {"mm, bmm, addmm, baddbmm, mv, addmv, dot",
     "cuBLAS workspace, kept by each thread from its first product on: 32 MiB from compute capability 9.0 on, else "
     "8.125 MiB",
     "aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize"},
    {"addmm with a vector as its first operand (a linear layer with bias)",
     "cublasLt workspace, kept by each thread from its first such product on: 1 MiB",
     "aten/src/ATen/cuda/CublasHandlePool.cpp, parseCUDABlasLtWorkspaceSize; golden 12"},
    {"sum, mean, linalg_vector_norm",
     "a buffer and a semaphore for each block of outputs, where the inputs of an output are spread over thread blocks",
     "aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig, gpu_reduce_kernel"},
    {"linalg_vector_norm with a wider dtype", "its input in that dtype (none from 16 bits to fp32)",
     "aten/src/ATen/native/ReduceOpsUtils.h, make_reduction"},
    {"_scaled_dot_product_flash_attention",
     "few rows for the card: for each of its splits fp32 logarithms [B, H, L] and outputs [B, H, L, D rounded up to "
     "32, "
     "past 128 to 64]; kept for backward: 16 and 8 bytes of random state",
     "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv, mha_fwd"},
    {"_scaled_dot_product_flash_attention_backward",
     "fp32 row sums [B, H, L rounded up to 128] and query gradients [B, L rounded, H, D rounded]; grouped queries: "
     "gradients of keys and values for each query head",
     "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd"},
    {"_scaled_dot_product_efficient_attention",
     "fp32 logarithms are padded to a multiple of 32 queries; outputs of fp16 and bf16 wider than 128 are summed in "
     "fp32",
     "aten/src/ATen/native/transformers/cuda/attention.cu, _efficient_attention_forward"},
    {"_scaled_dot_product_efficient_attention_backward",
     "row sums of gradient times output (fp32: with the product and a copy), and partial query gradients",
     "aten/src/ATen/native/transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h"},
    {"native_layer_norm_backward, _fused_rms_norm_backward",
     "more than 65536 rows and few columns: fp32 partial sums of each 32 rows, for each gradient of a weight",
     "aten/src/ATen/native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel"},
    {"embedding_dense_backward",
     "more than 3072 tokens: sorted tokens and their places, sort and scan buffers of CUB, fp32 partial sums; of very "
     "few "
     "rows: fp32 rows",
     "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu; golden 12"},
};

/// Kept by each thread that multiplies matrices.
std::int64_t cublas_workspace_bytes(const CudaCard& card);
/// Kept by each thread that runs a linear layer with bias.
inline constexpr std::int64_t kCublasLtWorkspaceBytes = std::int64_t{1} << 20;

/// How a reduction kernel sees its input: which dimensions were merged is no longer visible.
struct CudaReduction {
  std::int64_t num_outputs = 1;
  std::int64_t inputs_per_output = 1;
  bool along_rows = true;              ///< the dimension of the smallest stride is reduced
  std::int64_t vector = 1;             ///< elements that a thread loads at once along that dimension
  std::int64_t accumulator_bytes = 4;  ///< of one partial result
};

struct CudaReductionScratch {
  std::int64_t buffer_bytes = 0;  ///< 0: no scratch
  std::int64_t semaphore_bytes = 0;
};
CudaReductionScratch cuda_reduction_scratch(const CudaReduction& reduction, const CudaCard& card);

/// A causal or full attention without dropout.
struct CudaAttention {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t query_length = 1;
  std::int64_t key_length = 1;
  std::int64_t head_dim = 1;
};
/// Head size as flash attention pads its fp32 buffers.
std::int64_t flash_rounded_head_dim(std::int64_t head_dim);
/// Into how many parts the forward pass splits the keys; 1: no scratch.
std::int64_t flash_num_splits(const CudaAttention& attention, const CudaCard& card);
/// Partial gradients of the memory-efficient backward pass, on cards with at least 160 KiB of shared memory a block
/// (8.0, 9.0, 10.0; on 8.6, 8.9 and 12.0 wide heads take other kernels). `is_half`: fp16 or bf16.
std::int64_t efficient_workspace_bytes(const CudaAttention& attention, bool is_half);

/// Rows of partial sums that a norm's backward keeps for each gradient of a weight; 0: no scratch.
std::int64_t norm_backward_partial_rows(std::int64_t rows, std::int64_t columns, const CudaCard& card);

/// Up to so many tokens embedding_dense_backward takes no scratch.
inline constexpr std::int64_t kEmbeddingMaxUnsortedTokens = 3072;
/// CUB's buffers to sort so many pairs of 64-bit numbers, to find the first of equal ones, and to sum. Tile sizes are
/// those of 8.0 and 9.0; older cards count as the one, newer as the other.
std::int64_t cub_sort_pairs_bytes(std::int64_t count, const CudaCard& card);
std::int64_t cub_unique_bytes(std::int64_t count, const CudaCard& card);
std::int64_t cub_sum_bytes(std::int64_t count);
/// Partial sums, one for each 10 tokens and one for each different token.
std::int64_t embedding_max_partial_sums(std::int64_t tokens, std::int64_t num_rows);
/// True if they are so many for so few rows that they are added into the rows at once and not kept.
bool embedding_adds_into_rows(std::int64_t tokens, std::int64_t num_rows, std::int64_t columns, const CudaCard& card);

}  // namespace assay
