#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/functions.h"
#include "model/products.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& targets, const at::Tensor& weights, std::int64_t chunk_tokens,
                            double grad_scale, bool products_in_fp32, bool with_gradients) {
    const BelowAutograd below;
    const at::Tensor factor = operand(weight, products_in_fp32);
    at::Tensor grad_x;
    at::Tensor grad_weight;
    at::Tensor scale;
    if (with_gradients) {
      grad_x = at::empty_like(x);
      if (weight.requires_grad()) grad_weight = gradient_sum(weight);
      // fp16 multiplies by a scale of 1 too, so that its allocations do not depend on the scale.
      if (grad_scale != 1 || x.scalar_type() == at::kHalf) scale = at::full({1}, grad_scale, weights.options());
    }
    at::Tensor loss = at::zeros({1}, x.options().dtype(at::kDouble));
    for (std::int64_t start = 0; start < x.size(0); start += chunk_tokens) {
      const std::int64_t count = std::min(chunk_tokens, x.size(0) - start);
      const at::Tensor x_chunk = operand(x.narrow(0, start, count), products_in_fp32);
      const at::Tensor target = targets.narrow(0, start, count).unsqueeze(1);
      at::Tensor token_weight = weights.narrow(0, start, count).unsqueeze(1);

      at::Tensor scores = at::_log_softmax(product_in_fp32(x_chunk, factor.t()), 1, /*half_to_float=*/false);
      const at::Tensor weighted = at::gather(scores, 1, target).mul_(token_weight);
      loss.sub_(weighted.to(at::kDouble).sum());
      if (!with_gradients) continue;

      // d loss / d logits = weight (softmax - one-hot)
      if (scale.defined()) token_weight = at::mul(token_weight, scale);
      scores.exp_().mul_(token_weight);
      scores.scatter_add_(1, target, at::neg(token_weight));
      scores = scores.to(factor.scalar_type());
      multiply_into(grad_x.narrow(0, start, count), scores, factor);
      if (grad_weight.defined()) add_product(grad_weight, scores.t(), x_chunk);
    }
    if (grad_weight.defined()) grad_weight = finish_gradient_sum(weight, grad_weight);
    context->save_for_backward({grad_x, grad_weight});
    return loss;
  }

  static void multiply_into(at::Tensor result, const at::Tensor& left, const at::Tensor& right) {
    if (result.scalar_type() == left.scalar_type()) {
      at::mm_out(result, left, right);
    } else {
      result.copy_(at::mm(left, right));
    }
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    return {saved[0], saved[1], {}, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                const at::Tensor& weights, std::int64_t chunk_tokens, double grad_scale,
                                const Kernels& kernels) {
  // Inside forward() gradients are always off, so the question is asked here.
  const bool with_gradients = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropyFunction::apply(x, weight, targets, weights, chunk_tokens, grad_scale,
                                           kernels.products_in_fp32, with_gradients);
}

}  // namespace assay::ops
