#include "model/run_backward.h"

#include <ATen/ATen.h>

namespace assay {

void run_backward(const at::Tensor& loss) { loss.backward(); }

}  // namespace assay
