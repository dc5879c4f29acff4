#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.h"
#include "model/products.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Numbers enter through `value` arguments: a number as an operand makes temporaries on a CPU that Meta does not.
//
// y = x r w with r = (mean(x^2) + eps)^(-1/2). Then, with g = dy w and n the width:
//   dw = sum over tokens of dy x r,   dx = r g - x r^3 (x . g) / n
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const BelowAutograd below;
    const at::Tensor factor = in_fp32(x);
    const at::Tensor norm = at::linalg_vector_norm(factor, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
    const at::Tensor inverse_root = at::full(norm.sizes(), eps, norm.options());
    inverse_root.addcmul_(norm, norm, 1.0 / static_cast<double>(x.size(-1))).rsqrt_();
    context->save_for_backward({x, weight, inverse_root});
    context->set_materialize_grads(false);
    return {at::mul(factor, inverse_root).mul_(in_fp32(weight)).to(x.scalar_type()), x.view(x.sizes())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    const at::Tensor weight = in_fp32(saved[1]);
    const std::int64_t width = weight.numel();
    const at::Tensor x = in_fp32(saved[0]).reshape({-1, width});
    const at::Tensor inverse_root = saved[2].reshape({-1, 1});
    const at::Tensor grad = in_fp32(grads[0]).reshape({-1, width});

    const at::Tensor product = at::mul(grad, x);
    const at::Tensor correction = at::mv(product, weight).unsqueeze_(1);
    correction.mul_(inverse_root).mul_(inverse_root).mul_(inverse_root);

    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      grad_weight = add_product_to_gradient(saved[1], product.t(), inverse_root.squeeze(1));
    }
    at::Tensor grad_x = at::mul(grad, weight);
    grad_x.mul_(inverse_root).addcmul_(x, correction, -1.0 / static_cast<double>(width));
    grad_x = grad_x.view(saved[0].sizes());
    if (grads[1].defined()) grad_x.add_(in_fp32(grads[1]));
    return {grad_x.to(saved[0].scalar_type()), grad_weight, at::Tensor()};
  }
};

// The same by one operator each way, which computes in fp32 too and takes no memory for it.
struct FusedRmsNormFunction : torch::autograd::Function<FusedRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const BelowAutograd below;
    const auto [normed, inverse_root] = at::_fused_rms_norm(x, weight.sizes(), weight, eps);
    context->save_for_backward({x, weight, inverse_root});
    context->set_materialize_grads(false);
    return {normed, x.view(x.sizes())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const bool wants_weight = context->needs_input_grad(1);
    const auto [grad_x, grad_weight] =
        at::_fused_rms_norm_backward(grads[0], saved[0], weight.sizes(), saved[2], weight, {true, wants_weight});
    if (grads[1].defined()) grad_x.add_(grads[1]);
    return {grad_x, wants_weight ? finish_gradient_sum(weight, grad_weight) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const Kernels& kernels) {
  const auto results =
      kernels.fused_norm ? FusedRmsNormFunction::apply(x, weight, eps) : RmsNormFunction::apply(x, weight, eps);
  return {results[0], results[1]};
}

}  // namespace assay::ops
