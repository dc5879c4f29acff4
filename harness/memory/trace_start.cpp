#include "harness/memory/trace_start.h"

#include <algorithm>
#include <map>

#include "harness/core/error.h"
#include "harness/memory/segment_table.h"

namespace assay {
namespace {

using Action = TraceEvent::Action;
using State = AllocatorSegment::State;

/// Goes backwards through the events.
class Rewinder {
 public:
  explicit Rewinder(const AllocatorTrace& trace) : trace_(trace), model_(trace.settings) {
    for (const auto& segment : trace.end) {
      add_segment({.address = segment.address}, {segment.bytes, segment.stream, segment.small, segment.expandable});
      for (const auto& block : segment.blocks) {
        if (block.state == State::free) continue;
        live_[block.address] = {block.bytes, block.requested_bytes, block.state == State::waiting};
      }
    }
  }

  std::vector<AllocatorSegment> run() {
    for (auto event = trace_.events.rbegin(); event != trace_.events.rend(); ++event) undo(*event);
    return build();
  }

 private:
  struct Live {
    std::int64_t bytes = 0;  ///< 0: not known
    std::int64_t requested_bytes = 0;
    bool waiting = false;
    std::int64_t place = 0;
  };

  [[noreturn]] void fail(std::int64_t place, const std::string& what) const {
    throw Error(ErrorKind::data, trace_.name + ": " + trace_.place_word + " " + std::to_string(place) + ": " + what);
  }

  void undo(const TraceEvent& event) {
    switch (event.action) {
      case Action::allocate:
        if (live_.erase(event.address) == 0) fail(event.place, "this block is allocated again without a free");
        return;
      case Action::free:
        if (!live_.emplace(event.address, Live{0, event.bytes, true, event.place}).second)
          fail(event.place, "this block is freed twice");
        return;
      case Action::begin_free:
        return undo_begin_free(event);
      case Action::segment_allocate:
      case Action::map:
        if (!segments_.remove(event.address, event.bytes))
          fail(event.place, "this segment is missing at the end, and nothing gave it back");
        return;
      case Action::segment_free:
        return add_segment(event,
                           {event.bytes, event.stream, event.bytes == AllocatorModel::kSmallSegmentBytes, false});
      case Action::unmap:
        return undo_unmap(event);
      case Action::empty_cache:
      case Action::out_of_memory:
        return;
    }
  }

  void undo_begin_free(const TraceEvent& event) {
    const auto block = live_.find(event.address);
    if (block == live_.end() || !block->second.waiting)
      fail(event.place, "this block should be waiting for its free to complete, and is not");
    block->second.waiting = false;
  }

  /// An unmapped stretch is of the pool of what is beside it, else of the one whose pages it is made of.
  void undo_unmap(const TraceEvent& event) {
    const auto* beside = segments_.neighbour(event.address, event.bytes);
    const bool small = beside != nullptr && beside->expandable && beside->stream == event.stream
                           ? beside->small
                           : event.bytes % AllocatorModel::kLargeSegmentBytes != 0;
    add_segment(event, {event.bytes, event.stream, small, true});
  }

  void add_segment(const TraceEvent& event, const SegmentTable::Segment& segment) {
    if (!segments_.add(event.address, segment)) fail(event.place, "this segment overlaps another one");
    if (segments_.reserved_bytes() > kMaxTraceInUse) fail(event.place, "all segments hold more than 2^50 bytes");
  }

  std::vector<AllocatorSegment> build() const {
    std::vector<AllocatorSegment> found;
    auto block = live_.begin();
    for (const auto& [address, segment] : segments_.by_address()) {
      AllocatorSegment built{address, segment.bytes, segment.stream, segment.small, segment.expandable, {}};
      const auto end = address + segment.bytes;
      for (; block != live_.end() && block->first < end; ++block) {
        const auto next = std::next(block);
        const auto room = (next == live_.end() ? end : std::min(end, next->first)) - block->first;
        const auto& live = block->second;
        if (block->first < address) fail(live.place, "this block lies in no segment");
        const auto bytes = live.bytes > 0 ? live.bytes : inferred_bytes(live, segment, room);
        if (bytes > room) fail(live.place, "this block reaches into the next one");
        built.blocks.push_back(
            {block->first, bytes, live.requested_bytes, live.waiting ? State::waiting : State::allocated});
      }
      found.push_back(std::move(built));
    }
    if (block != live_.end()) fail(block->second.place, "this block lies in no segment");
    return found;
  }

  std::int64_t inferred_bytes(const Live& live, const SegmentTable::Segment& segment, std::int64_t room) const {
    const auto rounded = model_.round_bytes(live.requested_bytes);
    // Rounded under settings that the recording does not tell.
    if (rounded > room && live.requested_bytes <= room) return room;
    const auto max_split = trace_.settings.max_split_size_bytes;
    const bool never_split = max_split && rounded >= *max_split;
    const bool whole = rounded <= room && (never_split || room - rounded <= AllocatorModel::kSmallBytes);
    return !segment.small && !segment.expandable && whole ? room : rounded;
  }

  const AllocatorTrace& trace_;
  AllocatorModel model_;  ///< for its rounding
  SegmentTable segments_;
  std::map<std::int64_t, Live> live_;
};

}  // namespace

std::vector<AllocatorSegment> state_before(const AllocatorTrace& trace) { return Rewinder(trace).run(); }

}  // namespace assay
