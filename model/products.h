#pragma once

#include <ATen/core/Tensor.h>

// How the network multiplies in bf16 and fp16, in one place. On a CPU operands go through fp32: its own products of
// these dtypes are slow where the processor has no units for them. No operator mixes dtypes, since that makes a full
// temporary on a CPU and none on Meta. All of it is free in fp32.

namespace assay::ops {

/// x in the dtype that products compute in; x itself if it has it.
at::Tensor operand(const at::Tensor& x);

/// weight.grad() += left right, for operands left [n, k] and right [k, m] or [k]. Straight into a grad() of the
/// operands' dtype; another one gets the product rounded once. Returns undefined, or where there is no grad() the
/// gradient that autograd must be handed.
at::Tensor add_product_to_gradient(const at::Tensor& weight, const at::Tensor& left, const at::Tensor& right);

/// Where a gradient is summed in the operands' dtype: weight.grad() if it has that dtype, else new zeros.
at::Tensor gradient_sum(const at::Tensor& weight);

/// Ends what gradient_sum began. Returns as add_product_to_gradient does.
at::Tensor finish_gradient_sum(const at::Tensor& weight, const at::Tensor& sum);

}  // namespace assay::ops
