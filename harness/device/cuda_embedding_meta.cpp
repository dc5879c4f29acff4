#include <ATen/ATen.h>

#include <algorithm>

#include "harness/device/meta_kernels.h"
#include "harness/device/meta_target.h"

namespace assay {
namespace {

using at::Tensor;

// Sorted by token, rows of equal tokens are summed in parts.
Tensor sorted_sum(const Tensor& grad, const Tensor& indices, std::int64_t num_rows, const CudaCard& card) {
  const std::int64_t tokens = indices.numel();
  const auto integers = [&](std::int64_t count) { return at::empty({count}, indices.options()); };
  const auto number = [&] { return at::empty({}, indices.options().dtype(at::kLong)); };
  const Tensor sorted = integers(tokens);
  const Tensor places = integers(tokens);
  {
    const Tensor range = integers(tokens);
    const auto buffer = meta_scratch(cub_sort_pairs_bytes(tokens, card));
  }
  Tensor result = at::empty({num_rows, grad.size(-1)}, grad.options());
  const Tensor segments = integers(tokens);
  const Tensor num_segments = number();
  {
    const Tensor unique = integers(tokens);
    const auto buffer = meta_scratch(cub_unique_bytes(tokens, card));
  }
  const std::int64_t most_segments = std::min(tokens, num_rows);
  const Tensor parts = integers(most_segments);
  const Tensor part_offsets = integers(most_segments);
  { const auto buffer = meta_scratch(cub_sum_bytes(most_segments)); }
  const Tensor num_parts = number();
  const std::int64_t most_parts = embedding_max_partial_sums(tokens, num_rows);
  const Tensor part_begins = integers(most_parts);
  const auto fp32 = grad.options().dtype(accumulated(grad.scalar_type()));
  Tensor owners;
  Tensor sums;
  if (embedding_adds_into_rows(tokens, num_rows, grad.size(-1), card)) {
    owners = integers(most_parts);
    if (fp32.dtype() != grad.dtype()) sums = at::empty(result.sizes(), fp32);
  } else {
    sums = at::empty({most_parts, grad.size(-1)}, fp32);
  }
  return result;
}

Tensor embedding_backward(const Tensor& grad_output, const Tensor& indices, c10::SymInt num_rows,
                          c10::SymInt /*padding*/, bool /*scale_by_frequency*/) {
  const Tensor grad = grad_output.contiguous();
  const std::int64_t rows = num_rows.expect_int();
  if (!meta_card() || indices.numel() <= kEmbeddingMaxUnsortedTokens) {
    return at::empty({rows, grad.size(-1)}, grad.options());
  }
  return sorted_sum(grad, indices.contiguous(), rows, *meta_card());
}

}  // namespace

void register_cuda_embedding(torch::Library& library) { library.impl("embedding_dense_backward", embedding_backward); }

}  // namespace assay
