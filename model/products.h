#pragma once

#include <ATen/core/Tensor.h>

// How the network multiplies matrices in bf16 and fp16, in one place. On a CPU operands go through fp32: its own
// products of these dtypes are slow where the processor has no units for them. CUDA multiplies them as they are, sums
// in fp32 and rounds the result, or leaves it in fp32. No operator mixes dtypes, since that makes a full temporary on a
// CPU and none on Meta, but for products that CUDA adds to fp32. All of it is free in fp32.

namespace assay::ops {

/// x in fp32, the dtype of sums; x itself if it has it.
at::Tensor in_fp32(const at::Tensor& x);

/// x in the dtype that its products compute in; x itself if it has it.
at::Tensor operand(const at::Tensor& x, bool products_in_fp32);

/// left right in fp32, for operands left [n, k] and right [k, m].
at::Tensor product_in_fp32(const at::Tensor& left, const at::Tensor& right);

/// sum += left right, for operands and an fp32 sum.
void add_product(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

/// weight.grad() += left right, for operands left [n, k] and right [k, m] or [k]. Straight into a grad() that is fp32
/// or has the operands' dtype; another one gets the product rounded once. Returns undefined, or where there is no
/// grad() the gradient that autograd must be handed.
at::Tensor add_product_to_gradient(const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right);

/// Where a gradient is summed in fp32: weight.grad() if it is fp32, else new zeros.
at::Tensor gradient_sum(const at::Tensor& weight);

/// Ends what gradient_sum began. Returns as add_product_to_gradient does.
at::Tensor finish_gradient_sum(const at::Tensor& weight, const at::Tensor& sum);

}  // namespace assay::ops
