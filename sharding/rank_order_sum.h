#pragma once

#include <ATen/core/Tensor.h>

namespace assay {

/// own [n] = sum of the `world_size` parts of received [world_size x n], first part first, in fp32, rounded once to
/// own's dtype. Both have one dtype. The bits depend on the values alone.
void sum_in_rank_order(const at::Tensor& own, const at::Tensor& received, int world_size);

}  // namespace assay
