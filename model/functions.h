#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/activation_tape.h"

// The differentiable pieces of the network, each as one autograd node that saves its inputs, and little
// else: a root a token for a norm, the gradient itself for the loss.
//
// Legend: B rows, L sequence length, T = B * L tokens, E hidden size, H query heads, K key/value heads, D head size,
// F intermediate size, V vocabulary.
//
// Gradients of weights: if weight.grad() is defined, backward adds into it in place and the graph ends there, so that a
// gradient goes straight into the flat buffer that grad() is a view of; else it is returned as autograd expects.
//
// Dtypes: fp32, bf16 or fp16, that of the weights; inputs and results have it too. grad() may be fp32 or the weight's
// dtype. Within a node sums are fp32. Products are fp32, or on CUDA of the operands' dtype and then summed in fp32
// (products.h). What leaves a node is rounded once; on CUDA each product is, but for logits and fp32 gradients. swiglu
// alone computes in the dtype of its inputs.
//
// A tape, where one may be given, records results in forward and provides them when a block is computed again.

/// A tensor is never read by two nodes: where the network branches, one node has several results, and adds up their
/// gradients in place. Autograd's own sum makes a temporary on Meta that it does not make on a CPU.
///
/// Inside a node autograd has nothing to record, so its layers of the dispatcher are left out (BelowAutograd): that is
/// what a small model's step is made of.
///
/// Called as ops::linear and so on: unqualified names would meet those of LibTorch.
namespace assay::ops {

using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// The attention operator that is called. On CUDA flash takes bf16 and fp16; efficient takes fp32 too, but no shared
/// keys, so that key and value are repeated.
enum class AttentionKernel { flash_cpu, flash_cuda, efficient_cuda };

/// The operator's name in ATen.
std::string_view name_of(AttentionKernel kernel);

/// What is called where devices differ: chosen once, from the device and the recipe. Unless told, a CPU's.
struct Kernels {
  AttentionKernel attention = AttentionKernel::flash_cpu;
  bool products_in_fp32 = true;  ///< also those of bf16 and fp16; else they are multiplied as they are
  bool fused_norm = false;       ///< one operator for the norm; a CPU has none
};

/// y_i [..., out_i] = x [..., in] weight_i^T for every weight [out_i, in]; one to three of them.
std::vector<at::Tensor> linears(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                const Kernels& kernels = {}, ActivationTape* tape = nullptr);

/// The same for one weight.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const Kernels& kernels = {},
                  ActivationTape* tape = nullptr);

/// Stands for residual + linear(x, weight) where only the gradients are wanted: multiplies nothing in forward, and its
/// value is that of `residual`.
at::Tensor unevaluated_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                              const Kernels& kernels = {});

/// Rows of weight [V, E] for input_ids int64 [B, L]: [B, L, E].
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& input_ids);

/// x [..., E], and beside it x / sqrt(mean(x^2) + eps) * weight [E] (Zhang and Sennrich 2019, as in Llama). What goes
/// on with x itself must read `residual`.
struct Normed {
  at::Tensor normed;
  at::Tensor residual;
};
Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const Kernels& kernels = {});

/// Rotates halves: x [B, L, heads, D], cos and sin fp32 [L, 1, D / 2]; pair i is (x[i], x[i + D / 2]), as in
/// transformers' Llama.
at::Tensor rotary(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// silu(gate) * up, elementwise.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Causal attention with query [B, L, H, D], key and value [B, L, K, D], head h reading key head h / (H / K), scale
/// 1 / sqrt(D). Returns [B, L, H * D]. Saves inputs, result and the fp32 logarithm of each row's sum. On CUDA D must be
/// a multiple of 8, for flash at most 256.
at::Tensor causal_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, ActivationTape* tape = nullptr);

/// The sum of the weighted token losses of x [T, E] under the head weight [V, E], fp64 [1]: token t counts
/// weights[t] x cross-entropy(x[t] weight^T, targets[t]); weights fp32 [T] hold 0 for ignored tokens and else the
/// divisor's inverse; targets int64 [T] must be in range also where ignored. Logits exist in fp32 for `chunk_tokens`
/// tokens at a time. Gradients are computed in the same pass, while the logits of a chunk exist: if the weight's grad()
/// is defined it has received its part when this returns, so the result must be the one that backward() starts from,
/// with gradient 1. `grad_scale` multiplies the gradients, not the loss, before they are rounded (fp16 loss scaling).
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                const at::Tensor& weights, std::int64_t chunk_tokens, double grad_scale = 1,
                                const Kernels& kernels = {});

}  // namespace assay::ops
