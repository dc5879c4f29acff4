#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/functions.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& targets, const at::Tensor& weights, std::int64_t chunk_tokens,
                            bool with_gradients) {
    const BelowAutograd below;
    at::Tensor grad_x;
    at::Tensor own_grad_weight;
    at::Tensor grad_weight = weight.grad();
    if (with_gradients) {
      grad_x = at::empty_like(x);
      if (!grad_weight.defined()) grad_weight = own_grad_weight = at::zeros_like(weight);
    }
    at::Tensor loss = at::zeros({1}, x.options().dtype(at::kDouble));
    for (std::int64_t start = 0; start < x.size(0); start += chunk_tokens) {
      const std::int64_t count = std::min(chunk_tokens, x.size(0) - start);
      const at::Tensor x_chunk = x.narrow(0, start, count);
      const at::Tensor target = targets.narrow(0, start, count).unsqueeze(1);
      const at::Tensor token_weight = weights.narrow(0, start, count).unsqueeze(1);

      at::Tensor scores = at::_log_softmax(at::mm(x_chunk, weight.t()), 1, /*half_to_float=*/false);
      const at::Tensor weighted = at::gather(scores, 1, target).mul_(token_weight);
      loss.sub_(weighted.to(at::kDouble).sum());
      if (!with_gradients) continue;

      // d loss / d logits = weight (softmax - one-hot)
      scores.exp_().mul_(token_weight);
      scores.scatter_add_(1, target, at::neg(token_weight));
      at::Tensor grad_x_chunk = grad_x.narrow(0, start, count);
      at::mm_out(grad_x_chunk, scores, weight);
      grad_weight.addmm_(scores.t(), x_chunk);
    }
    context->save_for_backward({grad_x, own_grad_weight});
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    return {saved[0], saved[1], at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                const at::Tensor& weights, std::int64_t chunk_tokens) {
  // Inside forward() gradients are always off, so the question is asked here.
  const bool with_gradients = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropyFunction::apply(x, weight, targets, weights, chunk_tokens, with_gradients);
}

}  // namespace assay::ops
