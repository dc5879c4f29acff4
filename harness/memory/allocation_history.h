#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "harness/memory/allocator_model.h"

namespace assay {

/// The last events of an allocator, each with what made it: a ring that forgets the oldest. Memory: 64 bytes an entry,
/// taken as entries come. One thread at a time.
class AllocationHistory {
 public:
  enum class Action : std::uint8_t {
    allocate,
    free,
    begin_free,  ///< another stream still uses the block; complete with end_free
    end_free,
    segment_allocate,
    segment_free,
    map,
    unmap,
    out_of_memory  ///< `address` is what the device has left in bytes
  };
  struct Entry {
    Action action = Action::allocate;
    std::uint32_t label = 0;  ///< from label()
    std::int64_t address = 0;
    std::int64_t bytes = 0;  ///< of a block: as asked for
    std::int64_t stream = 0;
    std::int64_t line = 0;             ///< of `source`, or a step; 0: none
    std::int64_t allocated_bytes = 0;  ///< of the allocator, after the event
    std::int64_t reserved_bytes = 0;
  };

  /// `source` stands where a stack frame has its file.
  explicit AllocationHistory(std::size_t max_entries, std::string source = "assay");

  /// The number of a text such as "backward: _scaled_dot_product_flash_attention, model.layers.3"; equal texts share
  /// one.
  std::uint32_t label(std::string_view text);
  void add(const Entry& entry);
  /// A change of segments as the model tells it.
  void add(const SegmentEvent& event, const AllocatorStatistics& statistics, std::uint32_t label,
           std::int64_t line = 0);

  std::size_t size() const { return entries_.size(); }
  /// 0 is the oldest that is kept.
  const Entry& at(std::size_t index) const;
  std::int64_t num_forgotten() const { return num_forgotten_; }
  const std::string& label_text(std::uint32_t label) const { return labels_[label]; }
  const std::string& source() const { return source_; }

 private:
  std::size_t max_entries_;
  std::string source_;
  std::vector<Entry> entries_;
  std::size_t oldest_ = 0;
  std::int64_t num_forgotten_ = 0;
  std::vector<std::string> labels_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

/// A memory snapshot that torch.cuda._memory_viz and pytorch.org/memory_viz open: `segments` as they are now, and the
/// history as the trace of device 0. Each label is a stack of one frame.
std::string memory_snapshot_pickle(const std::vector<AllocatorSegment>& segments, const AllocationHistory& history,
                                   const AllocatorSettings& settings);

/// The history as a Chrome trace (JSON): counters allocated_bytes and reserved_bytes; a microsecond is an event.
std::string chrome_trace(const AllocationHistory& history);

}  // namespace assay
