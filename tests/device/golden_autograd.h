#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace assay::golden {

/// torch.utils.checkpoint(block, x, use_reentrant=False): nothing of the block but x is kept; the first tensor that
/// backward needs brings all of them back, the computation stops at the last one, and each dies when it was used.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& x);

/// torch.autocast to bf16, for the operators the golden programs use. Meta tensors have none of LibTorch's own.
/// Casts of weights are kept until the outermost scope ends. `enabled` false: changes nothing.
class AutocastScope {
 public:
  explicit AutocastScope(bool enabled);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool enabled_;
};

/// What a matrix product reads within an AutocastScope; `x` itself outside of one.
at::Tensor autocast(const at::Tensor& x);

}  // namespace assay::golden
