#include "harness/memory/allocation_history.h"

#include <array>
#include <map>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/memory/pickle_writer.h"

namespace assay {
namespace {

using Action = AllocationHistory::Action;
using Entry = AllocationHistory::Entry;
using State = AllocatorSegment::State;

Action action_of(SegmentEvent::Action action) {
  switch (action) {
    case SegmentEvent::Action::allocate:
      return Action::segment_allocate;
    case SegmentEvent::Action::free:
      return Action::segment_free;
    case SegmentEvent::Action::map:
      return Action::map;
    default:
      return Action::unmap;
  }
}

/// Names of PyTorch's trace entries; a release is two.
std::vector<const char*> names_of(Action action) {
  switch (action) {
    case Action::allocate:
      return {"alloc"};
    case Action::free:
      return {"free_requested", "free_completed"};
    case Action::begin_free:
      return {"free_requested"};
    case Action::end_free:
      return {"free_completed"};
    case Action::segment_allocate:
      return {"segment_alloc"};
    case Action::segment_free:
      return {"segment_free"};
    case Action::map:
      return {"segment_map"};
    case Action::unmap:
      return {"segment_unmap"};
    default:
      return {"oom"};
  }
}

const char* name_of(State state) {
  if (state == State::allocated) return "active_allocated";
  return state == State::waiting ? "active_pending_free" : "inactive";
}

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const AllocationHistory& history) : history_(history) {}

  std::string write(const std::vector<AllocatorSegment>& segments, const AllocatorSettings& settings) {
    for (std::size_t i = 0; i < history_.size(); ++i) {
      if (const auto& entry = history_.at(i); entry.action == Action::allocate)
        last_allocation_[entry.address] = &entry;
    }
    pickle_.begin_dict();
    pickle_.text("segments");
    pickle_.begin_list();
    for (const auto& segment : segments) write_segment(segment);
    pickle_.end();
    pickle_.text("device_traces");
    pickle_.begin_list();
    pickle_.begin_list();
    for (std::size_t i = 0; i < history_.size(); ++i) write_entry(history_.at(i));
    pickle_.end();
    pickle_.end();
    pickle_.text("allocator_settings");
    write_settings(settings);
    pickle_.end();
    return pickle_.finish();
  }

 private:
  void set(std::string_view key, std::string_view value) {
    pickle_.text(key);
    pickle_.text(value);
  }
  void set(std::string_view key, std::int64_t value) {
    pickle_.text(key);
    pickle_.integer(value);
  }
  void set_boolean(std::string_view key, bool value) {
    pickle_.text(key);
    pickle_.boolean(value);
  }

  void write_segment(const AllocatorSegment& segment) {
    std::array<std::int64_t, 3> bytes{};  // allocated, active, requested
    for (const auto& block : segment.blocks) {
      if (block.state == State::allocated) bytes[0] += block.bytes;
      if (block.state != State::free) bytes[1] += block.bytes;
      if (block.state != State::free) bytes[2] += block.requested_bytes;
    }
    pickle_.begin_dict();
    set("device", 0);
    set("address", segment.address);
    set("total_size", segment.bytes);
    set("allocated_size", bytes[0]);
    set("active_size", bytes[1]);
    set("requested_size", bytes[2]);
    set("stream", segment.stream);
    set("segment_type", segment.small ? "small" : "large");
    pickle_.text("segment_pool_id");
    pickle_.tuple(0, 0);
    set_boolean("is_expandable", segment.expandable);
    write_frames(nullptr);
    pickle_.text("blocks");
    pickle_.begin_list();
    for (const auto& block : segment.blocks) write_block(block);
    pickle_.end();
    pickle_.end();
  }

  void write_block(const AllocatorSegment::Block& block) {
    pickle_.begin_dict();
    set("address", block.address);
    set("size", block.bytes);
    set("requested_size", block.requested_bytes);
    set("state", name_of(block.state));
    const auto made = last_allocation_.find(block.address);
    write_frames(block.state != State::free && made != last_allocation_.end() ? made->second : nullptr);
    pickle_.end();
  }

  void write_entry(const Entry& entry) {
    for (const auto* name : names_of(entry.action)) {
      pickle_.begin_dict();
      set("action", name);
      set(entry.action == Action::out_of_memory ? "device_free" : "addr", entry.address);
      set("size", entry.bytes);
      set("stream", entry.stream);
      write_frames(&entry);
      pickle_.end();
    }
  }

  /// Key and value. Entries of one label and line share the list.
  void write_frames(const Entry* entry) {
    pickle_.text("frames");
    const auto key = entry == nullptr ? std::pair<std::int64_t, std::int64_t>{-1, 0}
                                      : std::pair<std::int64_t, std::int64_t>{entry->label, entry->line};
    const auto kept = frames_.find(key);
    if (kept != frames_.end()) return pickle_.again(kept->second);
    pickle_.begin_list();
    if (entry != nullptr) {
      pickle_.begin_dict();
      set("name", history_.label_text(entry->label));
      set("filename", history_.source());
      set("line", entry->line);
      pickle_.end();
    }
    pickle_.end();
    frames_[key] = pickle_.keep();
  }

  void write_settings(const AllocatorSettings& settings) {
    pickle_.begin_dict();
    set("max_split_size", settings.max_split_size_bytes.value_or(-1));
    pickle_.text("garbage_collection_threshold");
    pickle_.real(settings.garbage_collection_threshold);
    set_boolean("expandable_segments", settings.expandable_segments);
    pickle_.text("roundup_power2_divisions");
    pickle_.begin_dict();
    set("1", settings.roundup_power2_divisions);
    pickle_.end();
    pickle_.end();
  }

  const AllocationHistory& history_;
  PickleWriter pickle_;
  std::unordered_map<std::int64_t, const Entry*> last_allocation_;  ///< by address
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> frames_;
};

}  // namespace

AllocationHistory::AllocationHistory(std::size_t max_entries, std::string source)
    : max_entries_(max_entries), source_(std::move(source)) {
  ASSAY_CHECK(max_entries_ > 0);
  label("");
}

std::uint32_t AllocationHistory::label(std::string_view text) {
  const auto [place, added] = numbers_.emplace(text, static_cast<std::uint32_t>(labels_.size()));
  if (added) labels_.emplace_back(text);
  return place->second;
}

void AllocationHistory::add(const Entry& entry) {
  if (entries_.size() < max_entries_) {
    entries_.push_back(entry);
    return;
  }
  entries_[oldest_] = entry;
  oldest_ = (oldest_ + 1) % max_entries_;
  ++num_forgotten_;
}

void AllocationHistory::add(const SegmentEvent& event, const AllocatorStatistics& statistics, std::uint32_t label,
                            std::int64_t line) {
  add({action_of(event.action), label, event.address, event.bytes, event.stream, line, statistics.allocated.current,
       statistics.reserved.current});
}

const Entry& AllocationHistory::at(std::size_t index) const { return entries_[(oldest_ + index) % entries_.size()]; }

std::string memory_snapshot_pickle(const std::vector<AllocatorSegment>& segments, const AllocationHistory& history,
                                   const AllocatorSettings& settings) {
  return SnapshotWriter(history).write(segments, settings);
}

std::string chrome_trace(const AllocationHistory& history) {
  std::string text = "{\"traceEvents\":[\n";
  const auto add = [&](const Json& event) { text += (text.back() == '}' ? ",\n" : "") + dump_json(event); };
  add({{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", history.source()}}}});
  for (std::size_t i = 0; i < history.size(); ++i) {
    const auto& entry = history.at(i);
    const auto time = history.num_forgotten() + static_cast<std::int64_t>(i);
    const auto counter = [&](const char* name, std::int64_t bytes) {
      add({{"ph", "C"}, {"name", name}, {"pid", 0}, {"ts", time}, {"args", {{"bytes", bytes}}}});
    };
    counter("allocated_bytes", entry.allocated_bytes);
    counter("reserved_bytes", entry.reserved_bytes);
    if (entry.action == Action::out_of_memory) {
      add({{"ph", "i"},
           {"name", "out of memory: " + history.label_text(entry.label)},
           {"pid", 0},
           {"ts", time},
           {"s", "g"},
           {"args", {{"bytes", entry.bytes}}}});
    }
  }
  return text + "\n]}\n";
}

}  // namespace assay
