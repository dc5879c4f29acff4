#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "harness/core/memory_scope.h"

namespace assay {

/// Blocks are counted as the CUDA caching allocator counts them: rounded up to this.
inline constexpr std::int64_t kBlockBytes = 512;

/// One allocation or release of device memory.
struct AllocationEvent {
  std::int64_t bytes = 0;  ///< as asked for; negative when released
  MemoryCategory category = MemoryCategory::temporaries;
  Phase phase = Phase::load;
  bool operator==(const AllocationEvent&) const = default;
};

/// Attributes the device memory of one rank to categories and phases, and enforces a capacity. Told of every allocation
/// by the tracking allocators, alike in a run and in a dry run. One thread at a time (the trainer's). No LibTorch.
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
    MemoryCategory category = MemoryCategory::temporaries;
    bool undecided = false;
  };

  /// `capacity_bytes` 0: unlimited.
  explicit MemoryLedger(std::int64_t capacity_bytes = 0) : capacity_bytes_(capacity_bytes) {}

  /// False if a block of so many bytes would go past the capacity.
  bool fits(std::int64_t bytes) const;
  std::int64_t capacity_bytes() const { return capacity_bytes_; }
  /// From the next allocation on; 0: unlimited.
  void set_capacity_bytes(std::int64_t bytes) { capacity_bytes_ = bytes; }

  Block allocate(std::int64_t bytes);
  void release(const Block& block);

  Phase phase() const { return phase_; }
  void set_phase(Phase phase);

  /// Keeps every event from now on, or stops; see events(). Costs 16 bytes an event.
  void record_events(bool on) { recording_ = on; }
  /// Events so far, categories final for all forward phases that have ended.
  const std::vector<AllocationEvent>& events() const { return events_; }

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

  /// Largest allocated_bytes() since the last call.
  std::int64_t take_interval_peak();

 private:
  static constexpr std::size_t kNoEvent = static_cast<std::size_t>(-1);
  struct Undecided {
    std::int64_t bytes = 0;        ///< 0 once released
    std::size_t event = kNoEvent;  ///< its place in events_
  };
  void decide_undecided();
  void note_peak();

  std::int64_t capacity_bytes_ = 0;
  Phase phase_ = Phase::load;
  std::uint64_t next_number_ = 0;
  std::int64_t num_events_ = 0;
  std::int64_t allocated_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t interval_peak_ = 0;
  std::int64_t undecided_bytes_ = 0;
  std::int64_t peak_undecided_bytes_ = 0;
  std::uint64_t peak_number_ = 0;      ///< blocks numbered below existed at the peak
  std::uint64_t first_undecided_ = 0;  ///< number of the block at undecided_[0]
  std::vector<Undecided> undecided_;   ///< blocks of this forward phase, by number
  Bytes by_category_{};
  Bytes peak_by_category_{};
  PhaseBytes peak_by_phase_{};
  bool recording_ = false;
  std::vector<AllocationEvent> events_;
};

}  // namespace assay
