#include "sharding/gradient_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace assay {
namespace {

constexpr std::int64_t kRow = 1024;
constexpr std::int64_t kMostRows = 16384;  // keeps the row norms small, and their sum on one thread (32768 begin two)

void add_rows(const at::Tensor& total, const at::Tensor& rows) {
  const at::Tensor norms = at::linalg_vector_norm(rows.to(at::kFloat), 2, at::IntArrayRef{1});
  total.add_(norms.to(at::kDouble).square_().sum());
}

}  // namespace

at::Tensor sum_of_squares(const at::Tensor& flat) {
  at::Tensor total = at::zeros({1}, flat.options().dtype(at::kDouble));
  const std::int64_t whole = flat.numel() / kRow * kRow;
  for (std::int64_t start = 0; start < whole; start += kRow * kMostRows) {
    const std::int64_t count = std::min(kRow * kMostRows, whole - start);
    add_rows(total, flat.narrow(0, start, count).view({-1, kRow}));
  }
  if (whole < flat.numel()) add_rows(total, flat.narrow(0, whole, flat.numel() - whole).unsqueeze(0));
  return total;
}

}  // namespace assay
