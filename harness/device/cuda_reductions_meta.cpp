#include <ATen/ATen.h>
#include <ATen/ops/linalg_vector_norm_meta_dispatch.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "harness/device/meta_kernels.h"
#include "harness/device/meta_target.h"

// Reductions. LibTorch's Meta kernels make the results; these add the scratch that CUDA's kernels take, which depends
// on how TensorIterator orders and merges the dimensions (aten/src/ATen/TensorIterator.cpp).

namespace assay {
namespace {

using at::Tensor;

struct Dimension {
  std::int64_t size = 1;
  std::int64_t stride = 0;  ///< in elements of the input

  std::int64_t extent() const { return (size - 1) * stride; }
};
using Dimensions = std::vector<Dimension>;

/// Fastest first, neighbours that can be walked as one merged.
Dimensions merged(const Dimensions& dimensions) {
  Dimensions result;
  for (const auto& dimension : dimensions) {
    if (dimension.size == 1) continue;
    if (!result.empty() && dimension.stride == result.back().size * result.back().stride) {
      result.back().size *= dimension.size;
    } else {
      result.push_back(dimension);
    }
  }
  return result;
}

std::int64_t count(const Dimensions& dimensions) {
  std::int64_t product = 1;
  for (const auto& dimension : dimensions) product *= dimension.size;
  return product;
}

struct Reduction {
  Dimensions reduced;
  Dimensions kept;
  std::int64_t element_bytes = 4;
  std::int64_t offset = 0;  ///< of the first element from an aligned address, in elements

  bool along_rows() const { return kept.empty() || (!reduced.empty() && reduced.front().stride < kept.front().stride); }

  // Kernels count bytes in 32 bits; larger inputs are halved along the longest dimension until they can.
  std::int64_t halve_until_indexable() {
    std::int64_t pieces = 1;
    for (;;) {
      std::int64_t bytes = 0;
      Dimension* longest = nullptr;
      for (auto* dimensions : {&reduced, &kept}) {
        for (auto& dimension : *dimensions) {
          bytes += dimension.extent() * element_bytes;
          if (longest == nullptr || dimension.extent() > longest->extent()) longest = &dimension;
        }
      }
      if (longest == nullptr || bytes < std::numeric_limits<std::int32_t>::max()) return pieces;
      longest->size = (longest->size + 1) / 2;
      pieces *= 2;
    }
  }

  std::int64_t output_vector() const {
    std::int64_t vector = 4;
    const auto fit = [&](std::int64_t value) {
      while (value % vector != 0) vector /= 2;
    };
    fit(offset);
    fit(kept.front().size);
    for (const auto& dimension : reduced) fit(dimension.stride);
    for (std::size_t i = 1; i < kept.size(); ++i) fit(kept[i].stride);
    return vector;
  }

  std::int64_t vector(std::int64_t input_vector) const {
    if (along_rows()) {
      const bool is_vectorized = reduced.size() == 1 && reduced.front().stride == 1 && reduced.front().size >= 128;
      return is_vectorized ? input_vector : 1;
    }
    return kept.front().stride == 1 ? output_vector() : 1;
  }
};

Reduction reduction_of(const Tensor& self, at::OptionalIntArrayRef dims) {
  std::vector<bool> is_reduced(static_cast<std::size_t>(self.dim()), !dims || dims->empty());
  if (dims) {
    for (const auto dim : *dims) is_reduced[static_cast<std::size_t>(dim < 0 ? dim + self.dim() : dim)] = true;
  }
  Dimensions reduced;
  Dimensions kept;
  for (std::int64_t dim = self.dim() - 1; dim >= 0; --dim) {
    (is_reduced[static_cast<std::size_t>(dim)] ? reduced : kept).push_back({self.size(dim), self.stride(dim)});
  }
  std::stable_sort(reduced.begin(), reduced.end(),
                   [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  return {merged(reduced), merged(kept), self.element_size(), self.storage_offset()};
}

void take_scratch(const Tensor& self, at::OptionalIntArrayRef dims, std::int64_t accumulator_bytes,
                  std::int64_t input_vector) {
  if (!meta_card() || self.numel() == 0) return;
  Reduction reduction = reduction_of(self, dims);
  const std::int64_t pieces = reduction.halve_until_indexable();
  const auto scratch = cuda_reduction_scratch({.num_outputs = count(reduction.kept),
                                               .inputs_per_output = count(reduction.reduced),
                                               .along_rows = reduction.along_rows(),
                                               .vector = reduction.vector(input_vector),
                                               .accumulator_bytes = accumulator_bytes},
                                              *meta_card());
  for (std::int64_t piece = 0; piece < pieces && scratch.buffer_bytes > 0; ++piece) {
    const auto buffer = meta_scratch(scratch.buffer_bytes);
    const auto semaphores = meta_scratch(scratch.semaphore_bytes);
  }
}

std::int64_t accumulator_bytes(at::ScalarType dtype) {
  return dtype == at::kDouble || at::isIntegralType(dtype, true) ? 8 : 4;
}

constexpr std::int64_t kInputVector = 4;

// Sums of 16-bit numbers load eight at once (ReduceSumProdKernel.cu).
std::int64_t sum_input_vector(const Tensor& self) { return self.element_size() == 2 ? 8 : kInputVector; }

void take_sum_scratch(const Tensor& self, at::OptionalIntArrayRef dims, const Tensor& result) {
  take_scratch(self, dims, accumulator_bytes(result.scalar_type()), sum_input_vector(self));
}

Tensor meta_sum(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, std::optional<at::ScalarType> dtype) {
  Tensor result = at::meta::sum(self, dims, keepdim, dtype);
  take_sum_scratch(self, dims, result);
  return result;
}

Tensor& meta_sum_out(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                     std::optional<at::ScalarType> dtype, Tensor& out) {
  at::meta::sum_outf(self, dims, keepdim, dtype, out);
  take_sum_scratch(self, dims, out);
  return out;
}

Tensor meta_mean(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim, std::optional<at::ScalarType> dtype) {
  Tensor result = at::meta::mean(self, dims, keepdim, dtype);
  take_scratch(self, dims, accumulator_bytes(result.scalar_type()), kInputVector);
  return result;
}

Tensor meta_vector_norm(const Tensor& self, const at::Scalar& order, at::OptionalIntArrayRef dims, bool keepdim,
                        std::optional<at::ScalarType> dtype) {
  Tensor result = at::meta::linalg_vector_norm(self, order, dims, keepdim, dtype);
  if (!meta_card()) return result;
  const bool is_cast = result.scalar_type() != self.scalar_type() && result.scalar_type() != at::kFloat;
  const Tensor input = is_cast ? self.to(result.scalar_type()) : self;
  take_scratch(input, dims, accumulator_bytes(result.scalar_type()), kInputVector);
  return result;
}

}  // namespace

void register_cuda_reductions(torch::Library& library) {
  library.impl("sum.dim_IntList", meta_sum);
  library.impl("sum.IntList_out", meta_sum_out);
  library.impl("mean.dim", meta_mean);
  library.impl("linalg_vector_norm", meta_vector_norm);
}
}  // namespace assay
