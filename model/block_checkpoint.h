#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "model/activation_tape.h"
#include "model/functions.h"

namespace assay {

/// What a block keeps between forward and backward: all; the results of its products and of attention; its input only.
enum class BlockCheckpointing { none, selective, full };

/// A block as y = residual + activated last_weight^T, where `body` makes both from the block's input. A body computes
/// the same from the same input at any time, and passes the tape on to its costly operators.
struct CheckpointedBlock {
  struct Body {
    at::Tensor activated;
    at::Tensor residual;
  };
  std::function<Body(const at::Tensor& x, ActivationTape* tape)> body;
  std::function<at::Tensor()> last_weight;  ///< asked anew for each use
  ops::Kernels kernels;                     ///< of the last product

  /// Around the second computation of the body.
  std::function<void()> before_recompute = [] {};
  std::function<void()> after_recompute = [] {};
};

/// y for x, which must require a gradient. Keeps x, and the tape if `keeps_tape`; backward computes the body again with
/// gradients, but not the last product, whose value it does not need. Weights get their gradients as in ops. Losses and
/// gradients have the bits of a block that keeps all. An error in backward leaves nothing behind.
at::Tensor run_checkpointed(const CheckpointedBlock& block, bool keeps_tape, const at::Tensor& x);

}  // namespace assay
