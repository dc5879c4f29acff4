#pragma once

#include <cstdint>
#include <optional>

#include "harness/memory/allocator_model.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// What a recipe's sections `allocator` and `device_memory` mean to the allocator; `device_memory_bytes` nothing:
/// unlimited. A stated capacity is set as PyTorch's memory fraction would be, so that garbage collection works under
/// it.
AllocatorSettings allocator_settings(const AllocatorOptions& options, std::optional<std::int64_t> device_memory_bytes);

/// Those of a recipe.
AllocatorSettings allocator_settings(const Recipe& recipe);

}  // namespace assay
