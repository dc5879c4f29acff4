#pragma once

#include <filesystem>

#include "harness/core/json.h"

namespace assay {

/// Reads the facts of this machine for machine.json. What cannot be read is null with a "<field>_reason" beside it:
///
///   host, kernel, os
///   cpu          model, num_cores (of the machine), num_cores_available (to this process: affinity and cgroup quota)
///   memory       total_bytes, available_bytes (also bounded by the cgroup)
///   disk         path, free_bytes (to this user), total_bytes: where the run folder is
///   numa_nodes   [{node, cpus, total_bytes}]
///   gpus         found: [{model, bus}] of the kernel driver; reason if none
///   versions     assay, compiler; libtorch is told by the ranks
///   environment  variables that change results or speed: OMP_, MKL_, NCCL_, GLOO_, CUDA_, PYTORCH_, TORCH_, ASSAY_
///
/// `folder` need not exist yet: its nearest existing parent counts. `root` is "/" but for tests. Never throws for a
/// fact.
Json read_inventory(const std::filesystem::path& folder, const std::filesystem::path& root = "/");

/// An NVIDIA GPU is there for this process: a device node /dev/nvidia<number>.
bool has_gpu(const std::filesystem::path& root = "/");

}  // namespace assay
