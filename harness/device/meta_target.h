#pragma once

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>

#include "harness/device/cuda_scratch.h"
#include "harness/device/device.h"

namespace assay {

/// What the Meta kernels of a thread stand for: that of its newest MetaTargetScope that still lives, else the CPU with
/// one thread.
const MetaTarget& meta_target();

/// The card, in a dry run for CUDA.
const std::optional<CudaCard>& meta_card();

/// In what CUDA kernels sum numbers of this type.
constexpr c10::ScalarType accumulated(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? c10::ScalarType::Double : c10::ScalarType::Float;
}

/// Memory for a kernel's scratch, until the pointer dies. On a full device throws c10::OutOfMemoryError.
c10::DataPtr meta_scratch(std::int64_t bytes);

/// In a dry run for CUDA: what the first matrix product of a thread takes and keeps. There backward runs on another
/// thread than forward, and so has its own. `has_bias`: also what a linear layer with bias takes.
void take_matrix_workspace(bool has_bias);

/// True while backward does not run a node but hands gradients from one to the next. Known to a thread with a scope.
bool is_between_nodes();

/// Holds workspaces as long as it lives. Made and destroyed by the thread whose kernels it is for.
class MetaTargetScope {
 public:
  explicit MetaTargetScope(const MetaTarget& target);
  ~MetaTargetScope();
  MetaTargetScope(const MetaTargetScope&) = delete;
  MetaTargetScope& operator=(const MetaTargetScope&) = delete;

 private:
  friend const MetaTarget& meta_target();
  friend const std::optional<CudaCard>& meta_card();
  friend void take_matrix_workspace(bool has_bias);
  friend bool is_between_nodes();

  struct Workspaces {
    c10::DataPtr cublas;
    c10::DataPtr cublaslt;
  };

  MetaTarget target_;
  std::optional<CudaCard> card_;
  Workspaces forward_;
  Workspaces backward_;
  at::CallbackHandle node_callback_;
  MetaTargetScope* older_;
};

}  // namespace assay
