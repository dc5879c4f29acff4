#include "harness/memory/replay.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "harness/core/error.h"
#include "harness/memory/segment_table.h"

namespace assay {
namespace {

using Action = TraceEvent::Action;
using State = AllocatorSegment::State;

constexpr std::int64_t kAddressStep = std::int64_t{1} << 30;
constexpr std::int64_t kLastAddress = std::int64_t{1} << 61;

std::optional<SegmentEvent::Action> segment_action(Action action) {
  switch (action) {
    case Action::segment_allocate:
      return SegmentEvent::Action::allocate;
    case Action::segment_free:
      return SegmentEvent::Action::free;
    case Action::map:
      return SegmentEvent::Action::map;
    case Action::unmap:
      return SegmentEvent::Action::unmap;
    default:
      return std::nullopt;
  }
}

std::string text_of(const SegmentEvent& event) {
  constexpr const char* names[] = {"taken", "given back", "mapped", "unmapped"};
  return std::to_string(event.bytes) + " bytes at " + std::to_string(event.address) + " " +
         names[static_cast<int>(event.action)];
}

bool same(const SegmentEvent& a, const SegmentEvent& b) {
  return a.action == b.action && a.address == b.address && a.bytes == b.bytes && a.stream == b.stream;
}

class Replayer {
 public:
  Replayer(const AllocatorTrace& trace, const ReplayOptions& options, AllocationHistory* history)
      : trace_(trace),
        options_(options),
        history_(history),
        model_(options.settings, [this](std::int64_t bytes, std::int64_t) { return place(bytes); }) {
    next_address_ = above_all();
    for (const auto id : model_.begin_with(trace.start)) blocks_[model_.address(id)].id = id;
    for (const auto& segment : trace.start) {
      held_.add(segment.address, {segment.bytes, segment.stream, segment.small, segment.expandable});
      for (const auto& block : segment.blocks) {
        auto& begun = blocks_.at(block.address);
        begun.requested_bytes = block.requested_bytes;
        begun.waiting = block.state == State::waiting;
      }
    }
    model_.set_segment_listener([this](const SegmentEvent& event) { segment_changed(event); });
    if (history_ != nullptr) label_ = history_->label("replay");
  }

  ReplayResult run() {
    for (const auto& event : trace_.events) {
      event_ = &event;
      ++number_;
      take(event);
    }
    event_ = nullptr;
    if (options_.as_recorded) compare_end();
    result_.statistics = model_.statistics();
    result_.statistics.num_ooms += num_recorded_ooms_;
    result_.largest_free_block_bytes = model_.largest_free_block_bytes();
    result_.segments = model_.segments();
    return std::move(result_);
  }

 private:
  static constexpr AllocatorModel::BlockId kLeftOut = -1;
  struct Block {
    AllocatorModel::BlockId id = kLeftOut;
    std::int64_t requested_bytes = 0;
    bool waiting = false;
  };

  std::int64_t above_all() const {
    std::int64_t end = 0;
    for (const auto& segment : trace_.start) end = std::max(end, segment.address + segment.bytes);
    for (const auto& event : trace_.events) {
      if (segment_action(event.action)) end = std::max(end, event.address + event.bytes);
    }
    return end / kAddressStep * kAddressStep + kAddressStep;
  }

  /// Where the recording has the segment that comes now, else an address of our own.
  std::int64_t place(std::int64_t bytes) {
    if (!expected_.empty()) {
      const auto& next = expected_.front();
      const bool area = next.action == SegmentEvent::Action::map && options_.settings.expandable_segments;
      const bool segment = next.action == SegmentEvent::Action::allocate && next.bytes == bytes;
      if ((area || segment) && !held_.overlaps(next.address, next.bytes)) return next.address;
    }
    const auto address = next_address_;
    if (bytes > kLastAddress - address)
      throw Error(ErrorKind::data, trace_.name + ": the replay needs more than 2^61 bytes of addresses");
    next_address_ += (bytes + kAddressStep - 1) / kAddressStep * kAddressStep;
    return address;
  }

  void take(const TraceEvent& event) {
    if (const auto action = segment_action(event.action)) {
      const bool taken = event.action == Action::segment_allocate || event.action == Action::map;
      if (options_.as_recorded || taken) expected_.push_back({*action, event.address, event.bytes, event.stream});
      return match();
    }
    switch (event.action) {
      case Action::allocate:
        return allocate(event);
      case Action::begin_free:
      case Action::free:
        return release(event);
      case Action::empty_cache:
        return model_.empty_cache();
      default:
        return fail_again(event);
    }
  }

  void allocate(const TraceEvent& event) {
    const auto block = model_.allocate(event.bytes, event.stream);
    blocks_[event.address] = {block.value_or(kLeftOut), event.bytes, false};
    if (block) {
      record(AllocationHistory::Action::allocate, model_.address(*block), event.bytes, event.stream);
      if (options_.as_recorded) compare_allocation(event, model_.address(*block));
    } else {
      ++result_.num_left_out;
      note_oom(event);
    }
    expected_.clear();
    made_.clear();
  }

  void compare_allocation(const TraceEvent& event, std::int64_t address) {
    if (address != event.address) {
      differs("the recording has the block at " + std::to_string(event.address) + ", the model at " +
              std::to_string(address));
    }
    compare_left_over();
  }

  /// Segment events that only one of the two has.
  void compare_left_over() {
    if (!expected_.empty()) differs("the recording has " + text_of(expected_.front()) + ", the model does not");
    if (!made_.empty()) differs("the model has " + text_of(made_.front()) + ", the recording does not");
  }

  void release(const TraceEvent& event) {
    const auto found = blocks_.find(event.address);
    ASSAY_CHECK(found != blocks_.end());
    auto& block = found->second;
    const bool done = event.action == Action::free;
    if (block.id != kLeftOut) {
      const auto address = model_.address(block.id);
      done ? model_.free(block.id) : model_.begin_free(block.id);
      record(!done           ? AllocationHistory::Action::begin_free
             : block.waiting ? AllocationHistory::Action::end_free
                             : AllocationHistory::Action::free,
             address, block.requested_bytes, event.stream);
    }
    block.waiting = true;
    if (done) blocks_.erase(found);
  }

  /// A request that failed in the recording.
  void fail_again(const TraceEvent& event) {
    if (options_.as_recorded) {
      ++num_recorded_ooms_;
      return note_oom(event);
    }
    const auto block = model_.allocate(event.bytes, event.stream);
    if (!block) return note_oom(event);
    model_.free(*block);
  }

  void note_oom(const TraceEvent& event) {
    const auto& figures = model_.statistics();
    const auto capacity = options_.settings.capacity_bytes;
    record(AllocationHistory::Action::out_of_memory, std::max<std::int64_t>(0, capacity - figures.reserved.current),
           event.bytes, event.stream);
    if (result_.first_oom) return;
    result_.first_oom = {number_,
                         event.place,
                         event.bytes,
                         figures.allocated.current,
                         figures.reserved.current,
                         model_.largest_free_block_bytes()};
  }

  void segment_changed(const SegmentEvent& event) {
    if (history_ != nullptr) history_->add(event, model_.statistics(), label_, event_->place);
    const bool taken = event.action == SegmentEvent::Action::allocate || event.action == SegmentEvent::Action::map;
    if (taken) {
      held_.add(event.address, {event.bytes, event.stream, false, event.action == SegmentEvent::Action::map});
    } else {
      held_.remove(event.address, event.bytes);
    }
    if (!options_.as_recorded) return;
    made_.push_back(event);
    match();
  }

  /// What the recording says and what the model did come in either order.
  void match() {
    while (!expected_.empty() && !made_.empty()) {
      if (!same(expected_.front(), made_.front())) {
        differs("the recording has " + text_of(expected_.front()) + ", the model " + text_of(made_.front()));
      }
      expected_.pop_front();
      made_.pop_front();
    }
  }

  void differs(const std::string& what) {
    if (!result_.first_difference.empty()) return;
    result_.first_difference =
        (event_ == nullptr ? "at the end" : trace_.place_word + " " + std::to_string(event_->place)) + ": " + what;
  }

  void compare_end() {
    compare_left_over();
    const auto found = model_.segments();
    if (found.size() != trace_.end.size()) {
      return differs("the recording has " + std::to_string(trace_.end.size()) + " segments, the model " +
                     std::to_string(found.size()));
    }
    for (std::size_t i = 0; i < found.size(); ++i) compare_segment(found[i], trace_.end[i]);
  }

  void compare_segment(const AllocatorSegment& found, const AllocatorSegment& recorded) {
    const auto where = "the segment at " + std::to_string(recorded.address);
    if (found.address != recorded.address || found.bytes != recorded.bytes || found.stream != recorded.stream ||
        found.small != recorded.small || found.expandable != recorded.expandable)
      return differs(where + " is another one in the model");
    const auto equal = [](const AllocatorSegment::Block& a, const AllocatorSegment::Block& b) {
      return a.address == b.address && a.bytes == b.bytes && a.state == b.state &&
             (a.state == State::free || a.requested_bytes == b.requested_bytes);
    };
    if (!std::equal(found.blocks.begin(), found.blocks.end(), recorded.blocks.begin(), recorded.blocks.end(), equal))
      differs(where + " is cut into other blocks in the model");
  }

  void record(AllocationHistory::Action action, std::int64_t address, std::int64_t bytes, std::int64_t stream) {
    if (history_ == nullptr) return;
    const auto& figures = model_.statistics();
    history_->add(
        {action, label_, address, bytes, stream, event_->place, figures.allocated.current, figures.reserved.current});
  }

  const AllocatorTrace& trace_;
  const ReplayOptions& options_;
  AllocationHistory* history_;
  AllocatorModel model_;
  std::int64_t next_address_ = 0;
  std::unordered_map<std::int64_t, Block> blocks_;  ///< by the recording's address
  SegmentTable held_;                               ///< the model's segments
  std::deque<SegmentEvent> expected_;               ///< the recording's, not met by the model so far
  std::deque<SegmentEvent> made_;                   ///< the model's, not met by the recording so far
  const TraceEvent* event_ = nullptr;
  std::int64_t number_ = 0;
  std::int64_t num_recorded_ooms_ = 0;
  std::uint32_t label_ = 0;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const AllocatorTrace& trace, const ReplayOptions& options, AllocationHistory* history) {
  return Replayer(trace, options, history).run();
}

}  // namespace assay
