#include "harness/device/meta_kernels.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "harness/device/meta_target.h"

// Operators of the CPU that have no Meta kernel in LibTorch 2.11. Each allocates what the CPU kernel allocates, in its
// order: results, and scratch that lives as long as the call. Sizes are read off
// aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, native/Embedding.cpp and native/TensorAdvancedIndexing.cpp;
// tests/train/dry_run_test.cpp compares whole steps with the CPU.

namespace assay {
namespace {

using at::Tensor;

Tensor meta_index_select(const Tensor& self, std::int64_t dim, const Tensor& index) {
  auto shape = self.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = index.numel();
  return at::empty(shape, self.options());
}

struct FlashSplit {
  std::int64_t query = 0;
  std::int64_t key = 0;
};

// The kernel's choice of block sizes by query length.
FlashSplit flash_split(std::int64_t query_length, std::int64_t key_length) {
  FlashSplit split{32, 512};
  if (query_length >= 768) {
    split.query = 256;
  } else if (query_length >= 192) {
    split.query = 64;
  }
  return {std::min(split.query, query_length), std::min(split.key, key_length)};
}

// A tensor [B, H, L, D] whose memory is laid out [B, L, H, D], as the kernel makes its results.
Tensor empty_heads_inside(const Tensor& like, std::int64_t head_dim) {
  return at::empty({like.size(0), like.size(2), like.size(1), head_dim}, like.options()).transpose(1, 2);
}

std::tuple<Tensor, Tensor> meta_flash_for_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                                              double /*dropout*/, bool /*is_causal*/,
                                              const std::optional<Tensor>& /*mask*/, std::optional<double> /*scale*/) {
  Tensor output = empty_heads_inside(query, value.size(3));
  Tensor logsumexp =
      at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat)).transpose(1, 2);
  const auto split = flash_split(query.size(2), key.size(2));
  const std::int64_t scratch = split.query * (split.key + 2 + query.size(3));
  const Tensor buffer = at::empty({meta_target().num_threads, scratch}, query.options());
  return {output, logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> meta_flash_for_cpu_backward(const Tensor& /*grad_output*/, const Tensor& query,
                                                               const Tensor& key, const Tensor& value,
                                                               const Tensor& /*out*/, const Tensor& /*logsumexp*/,
                                                               double /*dropout*/, bool /*is_causal*/,
                                                               const std::optional<Tensor>& /*mask*/,
                                                               std::optional<double> /*scale*/) {
  Tensor grad_query = empty_heads_inside(query, query.size(3));
  Tensor grad_key = empty_heads_inside(key, key.size(3));
  Tensor grad_value = empty_heads_inside(value, value.size(3));
  const auto split = flash_split(query.size(2), key.size(2));
  const Tensor scores = at::empty({meta_target().num_threads, 2 * split.query * split.key}, query.options());
  const Tensor row_sums = at::empty({split.query}, query.options());
  return {grad_query, grad_key, grad_value};
}

void meta_fused_adamw(at::TensorList /*self*/, at::TensorList /*grads*/, at::TensorList /*exp_avgs*/,
                      at::TensorList /*exp_avg_sqs*/, at::TensorList /*max_exp_avg_sqs*/,
                      at::TensorList /*state_steps*/, double /*lr*/, double /*beta1*/, double /*beta2*/,
                      double /*weight_decay*/, double /*eps*/, bool /*amsgrad*/, bool /*maximize*/,
                      const std::optional<Tensor>& /*grad_scale*/, const std::optional<Tensor>& /*found_inf*/) {}

}  // namespace

void register_cpu_kernels(torch::Library& library) {
  library.impl("index_select", meta_index_select);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", meta_flash_for_cpu);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", meta_flash_for_cpu_backward);
  library.impl("_fused_adamw_", meta_fused_adamw);
}

}  // namespace assay
