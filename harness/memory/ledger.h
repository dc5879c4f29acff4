#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "harness/core/memory_scope.h"
#include "harness/memory/allocation_history.h"
#include "harness/memory/allocator_model.h"
#include "harness/memory/out_of_memory.h"

namespace assay {

/// The smallest step of a block's size.
inline constexpr std::int64_t kBlockBytes = AllocatorModel::kMinBlockBytes;

/// One allocation or release of device memory.
struct AllocationEvent {
  std::int64_t bytes = 0;  ///< as asked for; negative when released
  MemoryCategory category = MemoryCategory::temporaries;
  Phase phase = Phase::load;
  bool operator==(const AllocationEvent&) const = default;
};

/// A piece of memory that was alive at the peak.
struct AliveBlock {
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::temporaries;
  Phase phase = Phase::load;        ///< in which it was made
  const char* operation = nullptr;  ///< the operator that made it; null: none was told
  std::string unit;                 ///< the model's unit that was in work; empty: none
  std::int64_t count = 1;           ///< blocks that are alike in all of this
};

/// Attributes the device memory of one rank to categories and phases, and enforces a capacity. Told of every allocation
/// by the tracking allocators, alike in a run and in a dry run. One thread at a time (the trainer's). No LibTorch.
///
/// Bytes are those of the blocks that an AllocatorModel hands out: rounded up, with tails it would not split.
///
/// A block allocated within a MemoryScope has that category. Any other one is `activations` if it was allocated in
/// phase forward and outlives it, else `temporaries`; that is known when the forward phase ends, and then corrected
/// backwards.
class MemoryLedger {
 public:
  using Bytes = std::array<std::int64_t, kMemoryCategoryNames.size()>;
  using PhaseBytes = std::array<std::int64_t, kPhaseNames.size()>;

  /// What the allocator keeps beside a block to give it back.
  struct Block {
    std::int64_t bytes = 0;
    std::uint64_t number = 0;
    AllocatorModel::BlockId id = 0;
    std::int32_t event = -1;  ///< its place in events(); -1: not recorded
    MemoryCategory category = MemoryCategory::temporaries;
    bool undecided = false;
  };

  explicit MemoryLedger(const AllocatorSettings& settings = {}) : allocator_(settings) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  /// Nothing, and no event, if the device is full: the model could not reserve enough even without its cache.
  std::optional<Block> allocate(std::int64_t bytes);
  void release(const Block& block);

  /// Refuses one allocation: the first one when so many events have been. A provoked out-of-memory.
  void refuse_at(std::int64_t num_events) { refused_at_ = num_events; }

  const AllocatorModel& allocator() const { return allocator_; }
  AllocatorModel& allocator() { return allocator_; }

  Phase phase() const { return phase_; }
  void set_phase(Phase phase);

  /// What is in work, as labels of the blocks that are made: an operator's name that lives as long as the program
  /// (null: none), and the model's unit by its place in `names` (-1: none).
  void set_operation(const char* name);
  void set_unit_names(std::vector<std::string> names) { unit_names_ = std::move(names); }
  void set_unit(int unit);

  /// Keeps the last events for a snapshot, from now on until a request is refused: a snapshot is of that moment.
  void keep_history(std::size_t max_entries);
  const std::optional<AllocationHistory>& history() const { return history_; }
  /// The last request that was refused.
  const std::optional<OutOfMemory>& out_of_memory() const { return out_of_memory_; }

  /// Keeps every event from now on, or stops; see events(). Costs 40 bytes an event.
  void record_events(bool on) { recording_ = on; }
  /// Events so far, categories final for all forward phases that have ended.
  const std::vector<AllocationEvent>& events() const { return events_; }

  /// The largest of what was alive at the peak, alike ones together; only blocks that were recorded.
  std::vector<AliveBlock> largest_at_peak(std::size_t most = 10) const;

  /// Allocations and releases so far, recorded or not.
  std::int64_t num_events() const { return num_events_; }

  std::int64_t allocated_bytes() const { return allocated_; }
  /// Largest allocated_bytes() since the start.
  std::int64_t peak_bytes() const { return peak_; }
  /// What was alive at that peak. Sums to peak_bytes(). Final outside of phase forward.
  const Bytes& peak_by_category() const { return peak_by_category_; }
  /// Peak of allocated_bytes() within each phase; 0 for a phase that never was.
  const PhaseBytes& peak_by_phase() const { return peak_by_phase_; }
  /// What is alive now. Sums to allocated_bytes() outside of phase forward.
  const Bytes& by_category() const { return by_category_; }

  /// The largest figures since the last call.
  struct IntervalPeak {
    std::int64_t allocated_bytes = 0;
    std::int64_t reserved_bytes = 0;
  };
  IntervalPeak take_interval_peak();

 private:
  struct Undecided {
    std::int64_t bytes = 0;   ///< 0 once released
    std::int32_t event = -1;  ///< its place in events_
  };
  /// Beside an event of events_.
  struct Origin {
    std::int64_t block_bytes = 0;  ///< 0: a release
    const char* operation = nullptr;
    int unit = -1;
    std::int32_t released_by = std::numeric_limits<std::int32_t>::max();  ///< number of an event
  };
  std::string unit_name(int unit) const;
  void note_refusal(std::int64_t bytes);
  void note_in_history(AllocationHistory::Action action, const Block& block);
  std::uint32_t history_label();
  void decide_undecided();
  void note_peak();

  AllocatorModel allocator_;
  std::int64_t refused_at_ = std::numeric_limits<std::int64_t>::max();
  Phase phase_ = Phase::load;
  std::uint64_t next_number_ = 0;
  std::int64_t num_events_ = 0;
  std::int64_t allocated_ = 0;
  std::int64_t peak_ = 0;
  IntervalPeak interval_peak_;
  std::int64_t undecided_bytes_ = 0;
  std::int64_t peak_undecided_bytes_ = 0;
  std::uint64_t peak_number_ = 0;      ///< blocks numbered below existed at the peak
  std::uint64_t first_undecided_ = 0;  ///< number of the block at undecided_[0]
  std::vector<Undecided> undecided_;   ///< blocks of this forward phase, by number
  Bytes by_category_{};
  Bytes peak_by_category_{};
  PhaseBytes peak_by_phase_{};
  const char* operation_ = nullptr;
  int unit_ = -1;
  std::vector<std::string> unit_names_;
  std::optional<AllocationHistory> history_;
  bool keeping_history_ = false;
  std::optional<std::uint32_t> label_;  ///< of what is in work, once it was needed
  std::optional<OutOfMemory> out_of_memory_;
  bool recording_ = false;
  std::int32_t peak_event_ = 0;  ///< recorded events up to the peak
  std::vector<AllocationEvent> events_;
  std::vector<Origin> origins_;
};

}  // namespace assay
