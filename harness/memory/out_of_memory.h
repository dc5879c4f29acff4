#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/core/json.h"
#include "harness/core/memory_scope.h"
#include "harness/memory/allocator_model.h"

namespace assay {

/// The device as it was when a request was refused.
struct OutOfMemory {
  std::int64_t requested_bytes = 0;
  Phase phase = Phase::load;
  std::string unit;                                                     ///< of the model, that was in work; empty: none
  std::string operation;                                                ///< empty: not known
  std::array<std::int64_t, kMemoryCategoryNames.size()> by_category{};  ///< what forward made counts as activations
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
  std::int64_t capacity_bytes = 0;
  std::int64_t largest_free_block_bytes = 0;
  std::vector<AllocatorSegment> segments;

  /// Share of the reserved bytes that is free and yet of no use to the request, 0 to 1.
  double fragmentation() const;
  /// "asked for 3.00 MiB in phase backward ...": the numbers, in one sentence.
  std::string sentence() const;
  /// All but the segments, for events and reports.
  Json to_json() const;
};

}  // namespace assay
