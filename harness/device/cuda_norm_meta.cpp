#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <tuple>

#include "harness/device/meta_kernels.h"
#include "harness/device/meta_target.h"

namespace assay {
namespace {

using at::Tensor;

struct Rows {
  std::int64_t count = 1;
  std::int64_t columns = 1;
};

Rows rows_of(const Tensor& input, std::size_t num_normalized_dims) {
  Rows rows;
  const std::int64_t first = input.dim() - static_cast<std::int64_t>(num_normalized_dims);
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) (dim < first ? rows.count : rows.columns) *= input.size(dim);
  return rows;
}

// One statistic for each row, in the shape in which it broadcasts.
Tensor statistic(const Tensor& input, std::size_t num_normalized_dims) {
  auto shape = input.sizes().vec();
  for (std::size_t i = shape.size() - num_normalized_dims; i < shape.size(); ++i) shape[i] = 1;
  return at::empty(shape, input.options().dtype(accumulated(input.scalar_type())));
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input, c10::SymIntArrayRef normalized_shape,
                                              const std::optional<Tensor>& /*weight*/,
                                              const std::optional<Tensor>& /*bias*/, double /*eps*/) {
  const Tensor x = input.contiguous();
  Tensor output = at::empty_like(x);
  Tensor mean = statistic(x, normalized_shape.size());
  return {output, mean, statistic(x, normalized_shape.size())};
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, at::IntArrayRef normalized_shape,
                                    const std::optional<Tensor>& /*weight*/, std::optional<double> /*eps*/) {
  TORCH_CHECK(meta_card(), "_fused_rms_norm is a kernel on CUDA only; make the meta device for target cuda");
  const Tensor x = input.contiguous();
  Tensor output = at::empty_like(x);
  return {output, statistic(x, normalized_shape.size())};
}

Tensor gradient_if(bool is_wanted, const std::optional<Tensor>& parameter) {
  return is_wanted && parameter && parameter->defined() ? at::empty_like(*parameter) : Tensor();
}

// Few columns and many rows: partial sums of rows, summed by a second kernel into new gradients.
void sum_by_parts(const Tensor& x, std::size_t num_normalized_dims, std::array<Tensor*, 2> gradients) {
  if (!meta_card()) return;
  const auto rows = rows_of(x, num_normalized_dims);
  const std::int64_t parts = norm_backward_partial_rows(rows.count, rows.columns, *meta_card());
  if (parts == 0) return;
  std::array<Tensor, 2> partial;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i] != nullptr && gradients[i]->defined()) {
      partial[i] = at::empty({parts, rows.columns}, gradients[i]->options());
    }
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (partial[i].defined()) *gradients[i] = partial[i].sum(0);
  }
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad_output, const Tensor& input,
                                                       c10::SymIntArrayRef normalized_shape, const Tensor& /*mean*/,
                                                       const Tensor& /*rstd*/, const std::optional<Tensor>& weight,
                                                       const std::optional<Tensor>& bias, std::array<bool, 3> wanted) {
  const Tensor grad = grad_output.contiguous();
  const Tensor x = input.contiguous();
  Tensor grad_input = wanted[0] ? at::empty_like(x) : Tensor();
  Tensor grad_weight = gradient_if(wanted[1], weight);
  Tensor grad_bias = gradient_if(wanted[2], bias);
  sum_by_parts(x, normalized_shape.size(), {&grad_weight, &grad_bias});
  return {grad_input, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_output, const Tensor& input,
                                             at::IntArrayRef normalized_shape, const Tensor& /*rstd*/,
                                             const std::optional<Tensor>& weight, std::array<bool, 2> wanted) {
  const Tensor grad = grad_output.contiguous();
  const Tensor x = input.contiguous();
  Tensor grad_input = wanted[0] ? at::empty_like(x) : Tensor();
  Tensor grad_weight = gradient_if(wanted[1], weight);
  sum_by_parts(x, normalized_shape.size(), {&grad_weight, nullptr});
  return {grad_input, grad_weight};
}

}  // namespace

void register_cuda_norms(torch::Library& library) {
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("_fused_rms_norm", rms_norm);
  library.impl("_fused_rms_norm_backward", rms_norm_backward);
}

}  // namespace assay
