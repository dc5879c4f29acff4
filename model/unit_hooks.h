#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace assay {

/// Told by the network what it does with the weights of its units, so that whoever owns them can gather, free and
/// reduce. Units by their index in Transformer::units(); a tied embedding is read by the head as unit 0. May throw; the
/// network holds nothing that would be left wrong. Called on the thread that runs forward or backward.
///
/// Without gradients only before_forward and after_forward come. With them, for every micro-step: forward of all units
/// in order, then Transformer::backward, which ends with after_backward of unit 0.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;

  /// Its weights are read until after_forward.
  virtual void before_forward(std::size_t unit) = 0;

  /// `output`: what the unit computed (hidden states; of the head the loss or the logits).
  virtual void after_forward(std::size_t unit, const at::Tensor& output) = 0;

  /// Its gradients are added to from now on, until after_backward; may come several times a micro-step.
  virtual void before_gradients(std::size_t unit) = 0;

  /// Its weights are read again and gradients added to, until after_backward.
  virtual void before_backward(std::size_t unit) = 0;

  /// Its gradient of this micro-step is complete, weights are no longer read; once a micro-step.
  virtual void after_backward(std::size_t unit) = 0;

  /// A checkpointed block is computed again; between before_backward and after_backward.
  virtual void before_recompute(std::size_t /*unit*/) {}
  virtual void after_recompute(std::size_t /*unit*/) {}
};

}  // namespace assay
