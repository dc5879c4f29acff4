#pragma once

#include <cstdint>
#include <memory>

#include "harness/memory/ledger.h"
#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

/// Steps a dry run does: the second is like all later ones.
inline constexpr std::int64_t kDryRunSteps = 2;

/// Runs the trainer of `rank` of a world of `world_size` on tensors without memory, without data, weights or other
/// processes, in milliseconds, and returns what it allocates on the recipe's device. `record_events`
/// keeps them, with the operator and unit that made each block. Throws c10::OutOfMemoryError past `allocator`'s
/// capacity. Changes what the thread's dry runs stand for.
std::shared_ptr<MemoryLedger> dry_run(const Recipe& recipe, const ModelConfig& config, int rank, int world_size,
                                      std::int64_t num_steps = kDryRunSteps, bool record_events = false,
                                      const AllocatorSettings& allocator = {});

}  // namespace assay
