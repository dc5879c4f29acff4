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

// Key or value [B, L, K, D] with each head as often as queries read it: [B, L, heads, D].
at::Tensor repeated(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t times = heads / x.size(2);
  if (times == 1) return x;
  return x.unsqueeze(3).expand({-1, -1, -1, times, -1}).reshape({x.size(0), x.size(1), heads, x.size(3)});
}

// The opposite for its gradient: summed over the queries' heads.
at::Tensor summed(const at::Tensor& gradient, std::int64_t heads) {
  const std::int64_t times = gradient.size(2) / heads;
  return times == 1 ? gradient : gradient.unflatten(2, {heads, times}).sum(3);
}

// What the operator's backward reads beside query, key and value: its output [B, L, H, D] in their dtype, fp32 the
// logarithms of the rows' sums, on CUDA two tensors of random state, which without dropout hold nothing.
variable_list attend(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  constexpr double no_dropout = 0;
  constexpr bool is_causal = true;
  switch (kernel) {
    case AttentionKernel::flash_cpu: {
      const auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
          swap(in_fp32(query)), swap(in_fp32(key)), swap(in_fp32(value)), no_dropout, is_causal);
      return {swap(output).to(query.scalar_type()), logsumexp};
    }
    case AttentionKernel::flash_cuda: {
      const auto results =
          at::_scaled_dot_product_flash_attention(swap(query), swap(key), swap(value), no_dropout, is_causal);
      return {swap(std::get<0>(results)), std::get<1>(results), std::get<6>(results), std::get<7>(results)};
    }
    case AttentionKernel::efficient_cuda: {
      const std::int64_t heads = query.size(2);
      const auto [output, logsumexp, seed, offset] = at::_scaled_dot_product_efficient_attention(
          swap(query), swap(repeated(key, heads)), swap(repeated(value, heads)), /*attn_bias=*/{},
          /*compute_log_sumexp=*/true, no_dropout, is_causal);
      return {swap(output), logsumexp, seed, offset};
    }
  }
  return {};
}

// Gradients of query, key and value, for that of the output; `results` are those of attend.
variable_list attend_backward(AttentionKernel kernel, const at::Tensor& grad, const at::Tensor& query,
                              const at::Tensor& key, const at::Tensor& value, at::TensorList results) {
  constexpr double no_dropout = 0;
  constexpr bool is_causal = true;
  const at::Tensor& output = results[0];
  switch (kernel) {
    case AttentionKernel::flash_cpu: {
      const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          swap(in_fp32(grad)), swap(in_fp32(query)), swap(in_fp32(key)), swap(in_fp32(value)), swap(in_fp32(output)),
          results[1], no_dropout, is_causal);
      const auto rounded = [&](const at::Tensor& gradient) { return swap(gradient).to(output.scalar_type()); };
      return {rounded(grad_query), rounded(grad_key), rounded(grad_value)};
    }
    case AttentionKernel::flash_cuda: {
      const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_backward(
          swap(grad), swap(query), swap(key), swap(value), swap(output), results[1], /*cum_seq_q=*/{},
          /*cum_seq_k=*/{}, query.size(1), key.size(1), no_dropout, is_causal, results[2], results[3]);
      return {swap(grad_query), swap(grad_key), swap(grad_value)};
    }
    case AttentionKernel::efficient_cuda: {
      const std::int64_t heads = query.size(2);
      const auto gradients = at::_scaled_dot_product_efficient_attention_backward(
          swap(grad), swap(query), swap(repeated(key, heads)), swap(repeated(value, heads)), /*attn_bias=*/{},
          swap(output), results[1], results[2], results[3], no_dropout, {true, true, true, false}, is_causal);
      return {swap(std::get<0>(gradients)), summed(swap(std::get<1>(gradients)), key.size(2)),
              summed(swap(std::get<2>(gradients)), key.size(2))};
    }
  }
  return {};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, AttentionKernel kernel, ActivationTape* tape) {
    const BelowAutograd below;
    const auto compute = [&] { return attend(kernel, query, key, value); };
    const auto results = tape != nullptr ? tape->next(compute) : compute();
    variable_list saved{query, key, value};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    context->saved_data["kernel"] = static_cast<std::int64_t>(kernel);
    const at::Tensor& output = results[0];
    return output.reshape({output.size(0), output.size(1), -1});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const BelowAutograd below;
    const auto saved = context->get_saved_variables();
    const auto kernel = static_cast<AttentionKernel>(context->saved_data["kernel"].toInt());
    auto gradients = attend_backward(kernel, grads[0].reshape(saved[3].sizes()), saved[0], saved[1], saved[2],
                                     at::TensorList(saved).slice(3));
    gradients.resize(5);
    return gradients;
  }
};

}  // namespace

std::string_view name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::flash_cpu:
      return "_scaled_dot_product_flash_attention_for_cpu";
    case AttentionKernel::flash_cuda:
      return "_scaled_dot_product_flash_attention";
    case AttentionKernel::efficient_cuda:
      return "_scaled_dot_product_efficient_attention";
  }
  return "";
}

at::Tensor causal_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, ActivationTape* tape) {
  return AttentionFunction::apply(query, key, value, kernel, tape);
}

}  // namespace assay::ops
