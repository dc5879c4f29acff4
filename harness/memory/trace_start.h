#pragma once

#include <vector>

#include "harness/memory/allocator_trace.h"

namespace assay {

/// The state before `trace.events`, found by undoing them from `trace.end`: what a recording that began late leaves
/// out. A block that was alive before and died during the recording has an inferred size: the request rounded as the
/// allocator does, and the rest behind it where that is too small to be a block of its own (1 MiB or less in the large
/// pool). Throws Error{data} that names file and place if events and end contradict each other.
std::vector<AllocatorSegment> state_before(const AllocatorTrace& trace);

}  // namespace assay
