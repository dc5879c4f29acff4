#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "harness/core/error.h"
#include "model/functions.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }

// Autograd takes single tensors, no lists: hence three places for weights.
struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  using OptionalWeight = std::optional<at::Tensor>;

  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& first,
                               const OptionalWeight& second, const OptionalWeight& third) {
    const BelowAutograd below;
    variable_list saved{x};
    variable_list results;
    auto shape = x.sizes().vec();
    for (const OptionalWeight& weight : {OptionalWeight(first), second, third}) {
      if (!weight || !weight->defined()) continue;
      saved.push_back(*weight);
      shape.back() = weight->size(0);
      results.push_back(at::mm(as_rows(x), weight->t()).view(shape));
    }
    context->save_for_backward(saved);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    auto saved = context->get_saved_variables();
    const at::Tensor x = as_rows(saved[0]);
    at::Tensor grad_x;
    variable_list results(4);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      at::Tensor& weight = saved[i + 1];
      const at::Tensor grad = as_rows(grads[i]);
      if (context->needs_input_grad(0)) {
        if (grad_x.defined()) {
          grad_x.addmm_(grad, weight);
        } else {
          grad_x = at::mm(grad, weight);
        }
      }
      if (!context->needs_input_grad(i + 1)) continue;
      if (weight.grad().defined()) {
        weight.mutable_grad().addmm_(grad.t(), x);
      } else {
        results[i + 1] = at::mm(grad.t(), x);
      }
    }
    if (grad_x.defined()) results[0] = grad_x.view(saved[0].sizes());
    return results;
  }
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& input_ids) {
    const BelowAutograd below;
    context->save_for_backward({weight, input_ids});
    return at::embedding(weight, input_ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    at::Tensor weight = saved[0];
    const at::Tensor ids = saved[1].reshape({-1});
    at::Tensor grad_weight;
    at::Tensor sum = weight.grad();
    if (!sum.defined()) sum = grad_weight = at::zeros_like(weight);
    sum.index_add_(0, ids, as_rows(grads[0]));
    return {grad_weight, at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights) {
  ASSAY_CHECK(!weights.empty() && weights.size() <= 3);
  const auto weight = [&](std::size_t i) { return i < weights.size() ? std::optional(weights[i]) : std::nullopt; };
  return LinearsFunction::apply(x, weights[0], weight(1), weight(2));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) { return linears(x, {weight}).front(); }

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& input_ids) {
  return EmbeddingFunction::apply(weight, input_ids);
}

}  // namespace assay::ops
