#pragma once

#include <ATen/core/Tensor.h>

namespace assay {

/// loss.backward(). If that throws, also what autograd still holds of the graph is given up: its queue would keep it,
/// with all activations, until the next backward of this thread.
void run_backward(const at::Tensor& loss);

}  // namespace assay
