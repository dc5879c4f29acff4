#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

// The differentiable pieces of the network, each as one autograd node that saves its inputs, and little
// else: a root a token for a norm, the gradient itself for the loss.
//
// Legend: B rows, L sequence length, T = B * L tokens, E hidden size, H query heads, K key/value heads, D head size,
// F intermediate size, V vocabulary.
//
// Gradients of weights: if weight.grad() is defined, backward adds into it in place and the graph ends there, so that a
// gradient goes straight into the flat buffer that grad() is a view of; else it is returned as autograd expects.

/// A tensor is never read by two nodes: where the network branches, one node has several results, and adds up their
/// gradients in place. Autograd's own sum makes a temporary on Meta that it does not make on a CPU.
///
/// Inside a node autograd has nothing to record, so its layers of the dispatcher are left out (BelowAutograd): that is what a
/// small model's step is made of.
///
/// Called as ops::linear and so on: unqualified names would meet those of LibTorch.
namespace assay::ops {

using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// y_i [..., out_i] = x [..., in] weight_i^T for every weight [out_i, in]; one to three of them.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights);

/// The same for one weight.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

/// Rows of weight [V, E] for input_ids int64 [B, L]: [B, L, E].
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& input_ids);

/// x [..., E], and beside it x / sqrt(mean(x^2) + eps) * weight [E] (Zhang and Sennrich 2019, as in Llama). What goes
/// on with x itself must read `residual`.
struct Normed {
  at::Tensor normed;
  at::Tensor residual;
};
Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// Rotates halves: x [B, L, heads, D], cos and sin fp32 [L, 1, D / 2]; pair i is (x[i], x[i + D / 2]), as in
/// transformers' Llama.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up, elementwise.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// The attention operator that is called, chosen once from the device and the recipe.
enum class AttentionKernel { flash_cpu };

/// The operator's name in ATen.
std::string_view name_of(AttentionKernel kernel);

/// Causal attention with query [B, L, H, D], key and value [B, L, K, D], head h reading key head h / (H / K), scale
/// 1 / sqrt(D). Returns [B, L, H * D].
at::Tensor causal_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value);

/// The sum of the weighted token losses of x [T, E] under the head weight [V, E], fp64 [1]: token t counts
/// weights[t] x cross-entropy(x[t] weight^T, targets[t]); weights fp32 [T] hold 0 for ignored tokens and else the
/// divisor's inverse; targets int64 [T] must be in range also where ignored. Logits exist in fp32 for `chunk_tokens`
/// tokens at a time. Gradients are computed in the same pass, while the logits of a chunk exist: if the weight's grad()
/// is defined it has received its part when this returns, so the result must be the one that backward() starts from,
/// with gradient 1.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                const at::Tensor& weights, std::int64_t chunk_tokens);

}  // namespace assay::ops
