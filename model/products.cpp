#include "model/products.h"

#include <ATen/ATen.h>

namespace assay::ops {
namespace {

bool is_fp32(const at::Tensor& x) { return x.defined() && x.scalar_type() == at::kFloat; }

}  // namespace

at::Tensor in_fp32(const at::Tensor& x) { return x.to(at::kFloat); }

at::Tensor operand(const at::Tensor& x, bool products_in_fp32) { return products_in_fp32 ? in_fp32(x) : x; }

at::Tensor product_in_fp32(const at::Tensor& left, const at::Tensor& right) {
  return is_fp32(left) ? at::mm(left, right) : at::mm(left, right, at::kFloat);
}

void add_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
  if (is_fp32(left)) {
    sum.addmm_(left, right);
  } else {
    at::Tensor result = sum;
    at::addmm_out(result, result, left, right, at::kFloat);
  }
}

at::Tensor add_product_to_gradient(const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor gradient = weight.grad();
  const bool is_vector = right.dim() == 1;
  if (is_fp32(gradient) && !is_vector) {
    add_product(gradient, left, right);
  } else if (!gradient.defined() || gradient.scalar_type() != left.scalar_type()) {
    return finish_gradient_sum(weight, is_vector ? at::mv(left, right) : at::mm(left, right));
  } else if (is_vector) {
    gradient.addmv_(left, right);
  } else {
    gradient.addmm_(left, right);
  }
  return {};
}

at::Tensor gradient_sum(const at::Tensor& weight) {
  const at::Tensor gradient = weight.grad();
  return is_fp32(gradient) ? gradient : at::zeros(weight.sizes(), weight.options().dtype(at::kFloat));
}

at::Tensor finish_gradient_sum(const at::Tensor& weight, const at::Tensor& sum) {
  const at::Tensor gradient = weight.grad();
  if (!gradient.defined()) return sum.to(weight.scalar_type());
  if (!gradient.is_same(sum)) gradient.add_(sum.to(gradient.scalar_type()));
  return {};
}

}  // namespace assay::ops
