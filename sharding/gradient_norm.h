#pragma once

#include <ATen/core/Tensor.h>

namespace assay {

/// Sum of squares of a flat tensor, fp64 [1]. Rows of 1024 elements are summed in fp32 and the rows in fp64: one
/// fp32 sum over a whole model is off by 1e-3. The bits depend on the tensor alone.
at::Tensor sum_of_squares(const at::Tensor& flat);

}  // namespace assay
