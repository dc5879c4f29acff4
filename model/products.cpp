#include "model/products.h"

#include <ATen/ATen.h>

namespace assay::ops {
namespace {

constexpr at::ScalarType kOperandDtype = at::kFloat;

bool takes_operands(const at::Tensor& gradient) {
  return gradient.defined() && gradient.scalar_type() == kOperandDtype;
}

}  // namespace

at::Tensor operand(const at::Tensor& x) { return x.to(kOperandDtype); }

at::Tensor add_product_to_gradient(const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor gradient = weight.grad();
  const bool is_vector = right.dim() == 1;
  if (!takes_operands(gradient)) {
    return finish_gradient_sum(weight, is_vector ? at::mv(left, right) : at::mm(left, right));
  }
  if (is_vector) {
    gradient.addmv_(left, right);
  } else {
    gradient.addmm_(left, right);
  }
  return {};
}

at::Tensor gradient_sum(const at::Tensor& weight) {
  const at::Tensor gradient = weight.grad();
  return takes_operands(gradient) ? gradient : at::zeros(weight.sizes(), weight.options().dtype(kOperandDtype));
}

at::Tensor finish_gradient_sum(const at::Tensor& weight, const at::Tensor& sum) {
  const at::Tensor gradient = weight.grad();
  if (!gradient.defined()) return sum.to(weight.scalar_type());
  if (!gradient.is_same(sum)) gradient.add_(sum.to(gradient.scalar_type()));
  return {};
}

}  // namespace assay::ops
