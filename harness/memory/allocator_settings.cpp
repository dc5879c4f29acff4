#include "harness/memory/allocator_settings.h"

namespace assay {

AllocatorSettings allocator_settings(const AllocatorOptions& options, std::optional<std::int64_t> device_memory_bytes) {
  AllocatorSettings settings;
  settings.capacity_bytes = settings.limit_bytes = device_memory_bytes.value_or(0);
  settings.max_split_size_bytes = options.max_split_size_bytes;
  settings.expandable_segments = options.expandable_segments;
  settings.roundup_power2_divisions = options.roundup_power2_divisions.value_or(0);
  settings.garbage_collection_threshold = options.garbage_collection_threshold.value_or(0);
  return settings;
}

AllocatorSettings allocator_settings(const Recipe& recipe) {
  return allocator_settings(recipe.allocator, recipe.device_memory_bytes);
}

}  // namespace assay
