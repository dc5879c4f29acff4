#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <tuple>

#include "harness/device/meta_kernels.h"
#include "harness/device/meta_target.h"

// The operators take [B, H, L, D]; the kernels below them work on [B, L, H, D]. Sizes are those of cuda_scratch.h.

namespace assay {
namespace {

using at::Tensor;

Tensor swap(const Tensor& x) { return x.transpose(1, 2); }

const CudaCard& card(const char* operation) {
  TORCH_CHECK(meta_card(), operation, " exists on CUDA only; make the meta device for target cuda");
  return *meta_card();
}

CudaAttention attention_of(const Tensor& query, const Tensor& key) {
  return {query.size(0), query.size(1), query.size(2), key.size(2), query.size(3)};
}

using FlashResults = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FlashResults flash(const Tensor& query, const Tensor& key, const Tensor& /*value*/, double /*dropout*/,
                   bool /*is_causal*/, bool /*return_debug_mask*/, std::optional<double> /*scale*/) {
  const auto attention = attention_of(query, key);
  const auto fp32 = query.options().dtype(at::kFloat);
  Tensor output = at::empty_like(swap(query));
  Tensor logsumexp = at::empty({attention.batch, attention.heads, attention.query_length}, fp32);
  const std::int64_t splits = flash_num_splits(attention, card("_scaled_dot_product_flash_attention"));
  const std::int64_t rows = attention.batch * attention.heads * attention.query_length;
  Tensor split_logsumexp;
  Tensor split_output;
  if (splits > 1) {
    split_logsumexp = at::empty({splits, rows}, fp32);
    split_output = at::empty({splits, rows, flash_rounded_head_dim(attention.head_dim)}, fp32);
  }
  Tensor random_state = at::empty({2}, query.options().dtype(at::kUInt64));
  Tensor unused = at::empty({}, query.options().dtype(at::kUInt64));
  return {swap(output),         logsumexp,    Tensor(), Tensor(), attention.query_length,
          attention.key_length, random_state, unused,   Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad_output, const Tensor& query, const Tensor& key,
                                                  const Tensor& value, const Tensor& output,
                                                  const Tensor& /*logsumexp*/, const Tensor& /*cumulative_queries*/,
                                                  const Tensor& /*cumulative_keys*/, c10::SymInt /*max_queries*/,
                                                  c10::SymInt /*max_keys*/, double /*dropout*/, bool /*is_causal*/,
                                                  const Tensor& /*seed*/, const Tensor& /*offset*/,
                                                  std::optional<double> /*scale*/) {
  card("_scaled_dot_product_flash_attention_backward");
  constexpr std::int64_t rows_per_block = 128;
  const auto attention = attention_of(query, key);
  const Tensor contiguous_grad = swap(grad_output).contiguous();
  const Tensor contiguous_output = swap(output).contiguous();
  Tensor grad_query = at::empty_like(swap(query));
  Tensor grad_key = at::empty_like(swap(key));
  Tensor grad_value = at::empty_like(swap(value));
  const auto fp32 = query.options().dtype(at::kFloat);
  const std::int64_t rows = (attention.query_length + rows_per_block - 1) / rows_per_block * rows_per_block;
  const Tensor row_sums = at::empty({attention.batch, attention.heads, rows}, fp32);
  const Tensor query_sums =
      at::empty({attention.batch, rows, attention.heads, flash_rounded_head_dim(attention.head_dim)}, fp32);
  if (key.size(1) != attention.heads) {
    const std::int64_t groups = attention.heads / key.size(1);
    const auto by_query_head = [&] {
      return at::empty({attention.batch, attention.key_length, key.size(1), groups, attention.head_dim}, key.options());
    };
    const Tensor key_sums = by_query_head();
    const Tensor value_sums = by_query_head();
    at::sum_out(grad_key, key_sums, {3});
    at::sum_out(grad_value, value_sums, {3});
  }
  return {swap(grad_query), swap(grad_key), swap(grad_value)};
}

// What of random numbers lies in host memory without dropout.
Tensor on_host(const Tensor& like) { return at::empty({0}, like.options().dtype(at::kLong)); }

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& query, const Tensor& /*key*/, const Tensor& value,
                                                     const std::optional<Tensor>& /*bias*/, bool compute_logsumexp,
                                                     double /*dropout*/, bool /*is_causal*/,
                                                     std::optional<double> /*scale*/) {
  card("_scaled_dot_product_efficient_attention");
  constexpr std::int64_t row_alignment = 32;
  constexpr std::int64_t most_in_registers = 128;
  const std::int64_t rows = (query.size(2) + row_alignment - 1) / row_alignment * row_alignment;
  const auto fp32 = query.options().dtype(at::kFloat);
  Tensor output = at::empty({query.size(0), query.size(2), query.size(1), value.size(3)}, query.options());
  Tensor logsumexp = at::empty({query.size(0), query.size(1), compute_logsumexp ? rows : 0}, fp32);
  Tensor sums;
  if (query.element_size() == 2 && value.size(3) > most_in_registers) sums = at::empty(output.sizes(), fp32);
  return {swap(output), logsumexp, on_host(query), on_host(query)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& /*bias*/,
    const Tensor& output, const Tensor& /*logsumexp*/, const Tensor& /*seed*/, const Tensor& /*offset*/,
    double /*dropout*/, std::array<bool, 4> /*wanted*/, bool /*is_causal*/, std::optional<double> /*scale*/) {
  card("_scaled_dot_product_efficient_attention_backward");
  const auto attention = attention_of(query, key);
  const bool is_half = query.element_size() == 2;
  const auto fp32 = query.options().dtype(at::kFloat);
  const Tensor contiguous_grad = swap(grad_output).contiguous();
  const auto gradient_of = [](const Tensor& x) { return at::empty(swap(x).sizes(), x.options()); };
  Tensor grad_query = gradient_of(query);
  Tensor grad_key = gradient_of(key);
  Tensor grad_value = gradient_of(value);
  Tensor row_sums;
  if (is_half) {
    row_sums = at::empty({attention.batch, attention.heads, attention.query_length}, fp32);
  } else {
    const Tensor product = contiguous_grad * swap(output);
    const Tensor sums = product.sum(-1);
    row_sums = swap(sums).contiguous();
  }
  const auto workspace = meta_scratch(efficient_workspace_bytes(attention, is_half));
  return {swap(grad_query), swap(grad_key), swap(grad_value), Tensor()};
}

}  // namespace

void register_cuda_attention(torch::Library& library) {
  library.impl("_scaled_dot_product_flash_attention", flash);
  library.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  library.impl("_scaled_dot_product_efficient_attention", efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
}

}  // namespace assay
