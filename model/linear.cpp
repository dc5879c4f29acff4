#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "harness/core/error.h"
#include "model/functions.h"
#include "model/products.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }

constexpr const char* kProductsInFp32 = "products_in_fp32";

// Gradients of y = x weight^T for operands grad and x. Adds to grad_x, if given, and to the weight's gradient, if
// wanted; returns what autograd must be handed for the weight.
at::Tensor linear_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight, at::Tensor* grad_x,
                           bool wants_weight) {
  if (grad_x != nullptr) {
    const at::Tensor factor = weight.to(grad.scalar_type());
    if (grad_x->defined()) {
      grad_x->addmm_(grad, factor);
    } else {
      *grad_x = at::mm(grad, factor);
    }
  }
  return wants_weight ? add_product_to_gradient(weight, grad.t(), x) : at::Tensor();
}

// Autograd takes single tensors, no lists: hence three places for weights.
struct LinearsFunction : torch::autograd::Function<LinearsFunction> {
  using OptionalWeight = std::optional<at::Tensor>;

  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& first,
                               const OptionalWeight& second, const OptionalWeight& third, bool products_in_fp32,
                               ActivationTape* tape) {
    const BelowAutograd below;
    variable_list saved{x};
    for (const OptionalWeight& weight : {OptionalWeight(first), second, third}) {
      if (weight && weight->defined()) saved.push_back(*weight);
    }
    context->save_for_backward(saved);
    context->saved_data[kProductsInFp32] = products_in_fp32;
    const auto compute = [&] { return products(saved, products_in_fp32); };
    return tape != nullptr ? tape->next(compute) : compute();
  }

  static variable_list products(const variable_list& x_and_weights, bool products_in_fp32) {
    const at::Tensor& x = x_and_weights[0];
    const at::Tensor rows = operand(as_rows(x), products_in_fp32);
    auto shape = x.sizes().vec();
    variable_list results;
    for (std::size_t i = 1; i < x_and_weights.size(); ++i) {
      const at::Tensor& weight = x_and_weights[i];
      shape.back() = weight.size(0);
      results.push_back(at::mm(rows, operand(weight, products_in_fp32).t()).to(x.scalar_type()).view(shape));
    }
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    const bool products_in_fp32 = context->saved_data[kProductsInFp32].toBool();
    const at::Tensor x = operand(as_rows(saved[0]), products_in_fp32);
    at::Tensor grad_x;
    variable_list results(6);
    for (std::size_t i = 0; i < grads.size(); ++i) {
      results[i + 1] =
          linear_backward(operand(as_rows(grads[i]), products_in_fp32), x, saved[i + 1],
                          context->needs_input_grad(0) ? &grad_x : nullptr, context->needs_input_grad(i + 1));
    }
    if (grad_x.defined()) results[0] = grad_x.to(saved[0].scalar_type()).view(saved[0].sizes());
    return results;
  }
};

struct UnevaluatedLinearFunction : torch::autograd::Function<UnevaluatedLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& residual, bool products_in_fp32) {
    const BelowAutograd below;
    context->save_for_backward({x, weight});
    context->saved_data[kProductsInFp32] = products_in_fp32;
    return residual.view(residual.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    const bool products_in_fp32 = context->saved_data[kProductsInFp32].toBool();
    at::Tensor grad_x;
    const at::Tensor grad_weight =
        linear_backward(operand(as_rows(grads[0]), products_in_fp32), operand(as_rows(saved[0]), products_in_fp32),
                        saved[1], &grad_x, context->needs_input_grad(1));
    return {grad_x.to(saved[0].scalar_type()).view(saved[0].sizes()), grad_weight, grads[0], at::Tensor()};
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
    const at::Tensor& weight = saved[0];
    const at::Tensor sum = gradient_sum(weight);
    sum.index_add_(0, saved[1].reshape({-1}), in_fp32(as_rows(grads[0])));
    return {finish_gradient_sum(weight, sum), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights, const Kernels& kernels,
                                ActivationTape* tape) {
  ASSAY_CHECK(!weights.empty() && weights.size() <= 3);
  const auto weight = [&](std::size_t i) { return i < weights.size() ? std::optional(weights[i]) : std::nullopt; };
  return LinearsFunction::apply(x, weights[0], weight(1), weight(2), kernels.products_in_fp32, tape);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const Kernels& kernels, ActivationTape* tape) {
  return linears(x, {weight}, kernels, tape).front();
}

at::Tensor unevaluated_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                              const Kernels& kernels) {
  return UnevaluatedLinearFunction::apply(x, weight, residual, kernels.products_in_fp32);
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& input_ids) {
  return EmbeddingFunction::apply(weight, input_ids);
}

}  // namespace assay::ops
