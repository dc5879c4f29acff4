#include <ATen/ATen.h>
#include <ATen/ops/add_meta_dispatch.h>

#include "harness/device/meta_kernels.h"
#include "harness/device/meta_target.h"

// Where a tensor is used twice, the engine adds its gradients: on a device into the first one if nobody else holds it,
// but on Meta into a new tensor (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace). Such a sum is known by
// its place: in backward, between two nodes.

namespace assay {
namespace {

using at::Tensor;

bool is_held_once(const Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

Tensor add(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  if (is_between_nodes() && !at::GradMode::is_enabled() && is_held_once(self) && self.sizes() == other.sizes())
    return self;
  return at::meta::add(self, other, alpha);
}

}  // namespace

void register_gradient_sum(torch::Library& library) { library.impl("add.Tensor", add); }

}  // namespace assay
