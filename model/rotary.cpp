#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.h"
#include "model/products.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// direction 1 turns forward, -1 back: a rotation's gradient is the opposite rotation, so that x need not be saved.
at::Tensor rotate(const at::Tensor& input, const at::Tensor& cos, const at::Tensor& sin, double direction) {
  const at::Tensor x = in_fp32(input);
  const std::int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  at::Tensor result = at::empty(x.sizes(), x.options());
  at::Tensor result_first = result.narrow(-1, 0, half);
  at::Tensor result_second = result.narrow(-1, half, half);
  at::mul_out(result_first, first, cos);
  result_first.addcmul_(second, sin, -direction);
  at::mul_out(result_second, second, cos);
  result_second.addcmul_(first, sin, direction);
  return result.to(input.scalar_type());
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    const BelowAutograd below;
    context->save_for_backward({cos, sin});
    return rotate(x, cos, sin, 1);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], -1), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RotaryFunction::apply(x, cos, sin);
}

}  // namespace assay::ops
