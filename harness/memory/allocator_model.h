#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace assay {

/// What PYTORCH_ALLOC_CONF sets, and what the device has.
struct AllocatorSettings {
  std::int64_t capacity_bytes = 0;                   ///< of the device; 0: unlimited
  std::int64_t limit_bytes = 0;                      ///< PyTorch's memory fraction as bytes; 0: not set
  std::optional<std::int64_t> max_split_size_bytes;  ///< more than 20 MiB, as PyTorch demands
  bool expandable_segments = false;
  std::int64_t roundup_power2_divisions = 0;  ///< 0 or 1: off; else a power of two
  double garbage_collection_threshold = 0;    ///< 0: off; works only under a limit, as in PyTorch
};

/// A figure of bytes and its largest value so far.
struct AllocatorFigure {
  std::int64_t current = 0;
  std::int64_t peak = 0;

  void add(std::int64_t bytes);
};

/// PyTorch's names and meanings (torch.cuda.memory_stats).
struct AllocatorStatistics {
  AllocatorFigure allocated;       ///< blocks handed out, after rounding
  AllocatorFigure active;          ///< those, and freed ones that wait for another stream
  AllocatorFigure reserved;        ///< taken from the device
  AllocatorFigure requested;       ///< of the active blocks, before rounding
  AllocatorFigure inactive_split;  ///< free parts of segments that are in use
  std::int64_t num_segments = 0;   ///< now; expandable areas are not counted
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
};

/// A piece of device memory that was asked from the driver, and the blocks it is cut into, by address.
struct AllocatorSegment {
  enum class State { free, allocated, waiting };
  struct Block {
    std::int64_t address = 0;
    std::int64_t bytes = 0;
    std::int64_t requested_bytes = 0;  ///< as asked when it was last handed out
    State state = State::free;
  };
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t stream = 0;
  bool small = false;       ///< of the pool for requests up to 1 MiB
  bool expandable = false;  ///< a mapped stretch of an expandable area
  std::vector<Block> blocks;
};

/// What is done to device memory, in order.
struct SegmentEvent {
  enum class Action { allocate, free, map, unmap };
  Action action = Action::allocate;
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t stream = 0;
};

/// The CUDA caching allocator of PyTorch 2.11 as arithmetic: no memory, only addresses and sizes. Rounding, two pools,
/// best fit by (size, address) within a stream, split, merge, release and retry on a full device, expandable segments,
/// oversize blocks and garbage collection follow c10/cuda/CUDACachingAllocator.cpp rule by rule, so that equal requests
/// give equal addresses, segments and statistics. Not modelled: private pools (CUDA graphs), callbacks, memory the
/// driver itself cannot give as one piece. One thread at a time. Public constants are those of the source.
class AllocatorModel {
 public:
  using BlockId = std::int32_t;  ///< valid until it is freed

  static constexpr std::int64_t kMinBlockBytes = 512;
  static constexpr std::int64_t kSmallBytes = std::int64_t{1} << 20;         ///< largest request of the small pool
  static constexpr std::int64_t kSmallSegmentBytes = std::int64_t{2} << 20;  ///< also the page of its expandable areas
  static constexpr std::int64_t kLargeSegmentBytes = std::int64_t{20} << 20;
  static constexpr std::int64_t kMinOwnSegmentBytes = std::int64_t{10} << 20;  ///< from here on segments fit requests
  static constexpr std::int64_t kRoundLargeBytes = std::int64_t{2} << 20;
  static constexpr std::int64_t kMaxNonSplitRoundingBytes = std::int64_t{20} << 20;

  /// Where a new segment of so many bytes lies, or a new expandable area (of which `bytes` is the address space).
  using Place = std::function<std::int64_t(std::int64_t bytes, std::int64_t stream)>;

  /// Unless told by `place`, segments lie one after the other at multiples of 2 MiB.
  explicit AllocatorModel(const AllocatorSettings& settings = {}, Place place = {});

  /// Told of every change of segments from now on; before allocate() returns.
  void set_segment_listener(std::function<void(const SegmentEvent&)> listener) { listener_ = std::move(listener); }

  /// Takes over segments that exist already, as a snapshot has them; before the first allocate(). What no block covers
  /// is free. Gives the ids of the blocks that are allocated or waiting, by address. Segments must not overlap.
  std::vector<BlockId> begin_with(std::vector<AllocatorSegment> segments);

  /// A block of at least `bytes` (1 or more), or nothing when the device is full; then all free segments were given
  /// back, as PyTorch does before it throws.
  std::optional<BlockId> allocate(std::int64_t bytes, std::int64_t stream = 0);

  /// Gives a block back to its pool.
  void free(BlockId block);

  /// The block is no longer allocated but stays active until free(): another stream still uses it.
  void begin_free(BlockId block);

  /// Gives all free segments, and free pages of expandable areas, back to the device.
  void empty_cache();

  /// Changes what the device can give from now on.
  void set_capacity(std::int64_t capacity_bytes, std::int64_t limit_bytes);

  std::int64_t address(BlockId block) const { return node(block).address; }
  std::int64_t block_bytes(BlockId block) const { return node(block).bytes; }
  const AllocatorStatistics& statistics() const { return statistics_; }
  const AllocatorSettings& settings() const { return settings_; }
  /// Peaks start again at what is current.
  void reset_peaks();

  /// What a request becomes; multiples of 512.
  std::int64_t round_bytes(std::int64_t bytes) const;
  std::int64_t largest_free_block_bytes() const;
  /// All segments by address.
  std::vector<AllocatorSegment> segments() const;

 private:
  static constexpr BlockId kNone = -1;

  /// A block, or an unmapped stretch of an expandable area. Neighbours are linked.
  struct Node {
    std::int64_t address = 0;
    std::int64_t bytes = 0;
    std::int64_t requested_bytes = 0;
    std::int64_t stream = 0;
    std::int64_t age_base = 0;  ///< calls of take_free_block of its pool when it became free
    BlockId previous = kNone;
    BlockId next = kNone;
    bool alive = false;
    bool small = false;
    bool allocated = false;
    bool waiting = false;
    bool mapped = true;
    bool expandable = false;
  };
  /// (stream, bytes, address): the order of the free blocks.
  using FreeKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, BlockId>;
  /// (stream, address): that of the unmapped stretches.
  using UnmappedKey = std::tuple<std::int64_t, std::int64_t, BlockId>;
  struct Pool {
    std::set<FreeKey> free;
    std::set<UnmappedKey> unmapped;
    std::int64_t num_searches = 0;
  };
  struct Request {
    std::int64_t bytes = 0;  ///< rounded
    std::int64_t stream = 0;
    bool small = false;
    std::int64_t segment_bytes = 0;
  };

  const Node& node(BlockId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  Node& node(BlockId id) { return nodes_[static_cast<std::size_t>(id)]; }
  Pool& pool_of(const Node& block) { return block.small ? small_ : large_; }
  BlockId new_node(const Node& values);
  void drop_node(BlockId id);
  void link(BlockId before, BlockId id, BlockId after);
  static FreeKey free_key(const Node& block, BlockId id) { return {block.stream, block.bytes, block.address, id}; }
  void insert_free(BlockId id);
  bool is_split(const Node& block) const { return block.previous != kNone || block.next != kNone; }

  Request request_of(std::int64_t bytes, std::int64_t stream) const;
  std::int64_t max_split_bytes() const;
  bool collects_garbage() const;
  BlockId take_free_block(const Request& request);
  BlockId take_new_segment(const Request& request);
  bool release_oversize(const Request& request);
  void collect_garbage();
  void hand_out(BlockId id, const Request& request, std::int64_t requested_bytes);
  std::int64_t merge(BlockId id, BlockId neighbour);
  void release_segment(BlockId id);
  void release_free(Pool& pool);

  BlockId begin_stretch(const AllocatorSegment& segment, BlockId before, std::vector<BlockId>& in_use);
  void end_area(BlockId last, std::int64_t area_end);
  std::int64_t area_bytes(std::int64_t at_least, bool small) const;
  std::int64_t expandable_bytes(BlockId id) const;
  bool is_free_or_unmapped(BlockId id) const;
  bool has_room(BlockId id, std::int64_t bytes) const;
  BlockId find_expandable(const Request& request);
  BlockId take_expandable(const Request& request);
  bool map(BlockId id, std::int64_t bytes);
  void unmap(BlockId id);
  void tell(SegmentEvent::Action action, std::int64_t address, std::int64_t bytes, std::int64_t stream);

  AllocatorSettings settings_;
  Place place_;
  std::function<void(const SegmentEvent&)> listener_;
  std::int64_t next_address_ = std::int64_t{1} << 44;
  std::vector<Node> nodes_;
  std::vector<BlockId> unused_nodes_;
  Pool small_;
  Pool large_;
  AllocatorStatistics statistics_;
};

}  // namespace assay
