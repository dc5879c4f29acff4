#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "harness/core/error.h"
#include "model/functions.h"
#include "model/products.h"

namespace assay::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The operators take [B, heads, L, D], the network has [B, L, heads, D].
at::Tensor swap(const at::Tensor& x) { return x.transpose(1, 2); }

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, AttentionKernel kernel, ActivationTape* tape) {
    const BelowAutograd below;
    const auto compute = [&] { return attend(kernel, query, key, value); };
    const auto results = tape != nullptr ? tape->next(compute) : compute();
    const at::Tensor& output = results[0];
    context->save_for_backward({query, key, value, output, results[1]});
    context->saved_data["kernel"] = static_cast<std::int64_t>(kernel);
    return output.reshape({output.size(0), output.size(1), -1});
  }

  // Output [B, L, H, D] in the query's dtype, and fp32 the logarithms of the rows' sums.
  static variable_list attend(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value) {
    std::tuple<at::Tensor, at::Tensor> results;
    switch (kernel) {
      case AttentionKernel::flash_cpu:
        results = at::_scaled_dot_product_flash_attention_for_cpu(swap(operand(query)), swap(operand(key)),
                                                                  swap(operand(value)), /*dropout_p=*/0.0,
                                                                  /*is_causal=*/true);
        break;
    }
    return {swap(std::get<0>(results)).to(query.scalar_type()), std::get<1>(results)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    const at::Tensor& output = saved[3];
    const at::Tensor grad = operand(grads[0].reshape(output.sizes()));
    std::tuple<at::Tensor, at::Tensor, at::Tensor> results;
    switch (static_cast<AttentionKernel>(context->saved_data["kernel"].toInt())) {
      case AttentionKernel::flash_cpu:
        results = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            swap(grad), swap(operand(saved[0])), swap(operand(saved[1])), swap(operand(saved[2])),
            swap(operand(output)), saved[4], /*dropout_p=*/0.0, /*is_causal=*/true);
        break;
    }
    const auto rounded = [&](const at::Tensor& gradient) { return swap(gradient).to(output.scalar_type()); };
    return {rounded(std::get<0>(results)), rounded(std::get<1>(results)), rounded(std::get<2>(results)), at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

std::string_view name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::flash_cpu:
      return "_scaled_dot_product_flash_attention_for_cpu";
  }
  return "";
}

at::Tensor causal_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, ActivationTape* tape) {
  return AttentionFunction::apply(query, key, value, kernel, tape);
}

}  // namespace assay::ops
