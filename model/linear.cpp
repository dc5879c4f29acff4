#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return at::mm(as_rows(x), weight.t()).view(shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    at::Tensor weight = saved[1];
    const at::Tensor grad_rows = as_rows(grads[0]);
    at::Tensor grad_x;
    if (context->needs_input_grad(0)) grad_x = at::mm(grad_rows, weight).view(x.sizes());
    at::Tensor grad_weight;
    if (context->needs_input_grad(1)) {
      if (weight.grad().defined()) {
        weight.mutable_grad().addmm_(grad_rows.t(), as_rows(x));
      } else {
        grad_weight = at::mm(grad_rows.t(), as_rows(x));
      }
    }
    return {grad_x, grad_weight};
  }
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& input_ids) {
    context->save_for_backward({weight, input_ids});
    return at::embedding(weight, input_ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
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

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) { return LinearFunction::apply(x, weight); }

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& input_ids) {
  return EmbeddingFunction::apply(weight, input_ids);
}

}  // namespace assay::ops
