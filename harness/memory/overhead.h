#pragma once

#include <cstdint>
#include <optional>

#include "harness/recipe/recipe.h"

namespace assay {

/// What the runtime takes of a device's memory beside the tensors of the program, in bytes.
struct Overhead {
  std::int64_t context = 0;        ///< CUDA context and loaded kernels; outside of the allocator
  std::int64_t workspaces = 0;     ///< of cuBLAS; inside of the allocator, kept for good
  std::int64_t communicators = 0;  ///< buffers of NCCL; outside of the allocator

  std::int64_t total() const { return context + workspaces + communicators; }
};

/// What the table is asked for.
struct OverheadFacts {
  int compute_capability = 90;         ///< major x 10 + minor
  std::int64_t num_communicators = 1;  ///< groups of ranks that have talked to each other
  std::int64_t world_size = 1;         ///< ranks of a group
};

/// The table, by published figures:
///   context       before 8.0: 300 MiB (pytorch issue 107667: lazy loading of kernels, CUDA 11.7 or later);
///                 8.0: 0.47 GiB (ml-engineering, training/performance: A100, torch 2.1.1, lazy loading);
///                 8.6 to 8.9: 256 MiB (InvokeAI issue 9413: RTX 3090, torch 2.7.1); from 9.0: 543 MiB (pytorch issue
///                 81257: one more process on a device)
///   workspaces    for each of the two threads that multiply, forward and backward: 8,519,680 bytes before 9.0, 32 MiB
///                 from 9.0 (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp)
///   communicators for each: 544 MB of two ranks, 688 MB of up to 8 (nccl issue 964: 4 A100 with NVLink), 1.6 GB of
///   more
///                 (nccl issue 864, several nodes); none of one
/// They differ by driver and version: measured values are to be preferred.
Overhead cuda_overhead(const OverheadFacts& facts);

/// Measured values in place of the table's: memory of the device in use, less what the allocator had reserved, before
/// and after the first collective.
struct MeasuredOverhead {
  std::optional<std::int64_t> context;
  std::optional<std::int64_t> communicators;
};

/// Of the recipe's device_memory, which must be stated, what is left for the allocator beside context and
/// communicators, by the table for a GPU of compute capability 9.0. All of it on a CPU.
std::int64_t usable_device_bytes(const Recipe& recipe);

/// The overhead of a rank of this recipe. Nothing on a CPU.
Overhead overhead_of(const Recipe& recipe, const OverheadFacts& facts, const MeasuredOverhead& measured = {});

}  // namespace assay
