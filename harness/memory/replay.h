#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/memory/allocation_history.h"
#include "harness/memory/allocator_model.h"
#include "harness/memory/allocator_trace.h"

namespace assay {

struct ReplayOptions {
  AllocatorSettings settings;
  /// The settings are those of the recording and the device is no smaller: new segments lie where the recording has
  /// them, and every address, every segment and the end are compared with it.
  bool as_recorded = true;
};

/// A request that did not fit.
struct ReplayOom {
  std::int64_t event = 0;  ///< from 1, of the trace's events
  std::int64_t place = 0;  ///< TraceEvent::place
  std::int64_t bytes = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
  std::int64_t largest_free_block_bytes = 0;
};

struct ReplayResult {
  AllocatorStatistics statistics;  ///< at the end; num_ooms with those of the recording where it is followed
  std::int64_t largest_free_block_bytes = 0;
  std::vector<AllocatorSegment> segments;  ///< at the end
  std::optional<ReplayOom> first_oom;
  std::int64_t num_left_out = 0;  ///< blocks whose request failed here and not in the recording
  std::string first_difference;   ///< from the recording, with its place; empty if it is met, or not compared
};

/// Feeds a trace to an AllocatorModel. A request that fails is counted and left out, with its free; the program that
/// was recorded would have stopped there. A request that failed in the recording counts as out of memory where the
/// recording is followed; else it is tried, and given back at once if it fits now.
/// Every event goes into `history` too, if one is given.
ReplayResult replay(const AllocatorTrace& trace, const ReplayOptions& options, AllocationHistory* history = nullptr);

}  // namespace assay
