#include "harness/memory/allocator_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace assay {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// The next of `divisions` equal steps between two powers of two.
std::int64_t round_to_division(std::int64_t bytes, std::int64_t divisions) {
  const auto value = static_cast<std::uint64_t>(bytes);
  if (std::has_single_bit(value)) return bytes;
  const std::uint64_t floor = std::bit_floor(value);
  const std::uint64_t step = floor >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
  if (step == 0) return static_cast<std::int64_t>(floor << 1);
  return round_up(bytes, static_cast<std::int64_t>(step));
}

}  // namespace

void AllocatorFigure::add(std::int64_t bytes) {
  current += bytes;
  peak = std::max(peak, current);
}

AllocatorModel::AllocatorModel(const AllocatorSettings& settings, Place place)
    : settings_(settings), place_(std::move(place)) {
  if (place_) return;
  place_ = [this](std::int64_t bytes, std::int64_t /*stream*/) {
    return std::exchange(next_address_, next_address_ + round_up(bytes, kRoundLargeBytes));
  };
}

std::int64_t AllocatorModel::round_bytes(std::int64_t bytes) const {
  const std::int64_t divisions = settings_.roundup_power2_divisions;
  if (divisions > 1 && bytes > kMinBlockBytes * divisions) return round_to_division(bytes, divisions);
  return std::max(kMinBlockBytes, round_up(bytes, kMinBlockBytes));
}

AllocatorModel::Request AllocatorModel::request_of(std::int64_t bytes, std::int64_t stream) const {
  Request request{round_bytes(bytes), stream, false, kLargeSegmentBytes};
  request.small = request.bytes <= kSmallBytes;
  if (request.small) {
    request.segment_bytes = kSmallSegmentBytes;
  } else if (request.bytes >= kMinOwnSegmentBytes) {
    request.segment_bytes = round_up(request.bytes, kRoundLargeBytes);
  }
  return request;
}

std::int64_t AllocatorModel::max_split_bytes() const { return settings_.max_split_size_bytes.value_or(kNoLimit); }

bool AllocatorModel::collects_garbage() const {
  return settings_.limit_bytes > 0 && settings_.garbage_collection_threshold > 0;
}

std::optional<AllocatorModel::BlockId> AllocatorModel::allocate(std::int64_t bytes, std::int64_t stream) {
  const Request request = request_of(bytes, stream);
  BlockId id = take_free_block(request);
  if (id == kNone) {
    if (collects_garbage()) collect_garbage();
    id = take_new_segment(request);
  }
  if (id == kNone && release_oversize(request)) id = take_new_segment(request);
  if (id == kNone) {
    empty_cache();
    ++statistics_.num_alloc_retries;
    id = take_new_segment(request);
  }
  if (id == kNone) {
    ++statistics_.num_ooms;
    return std::nullopt;
  }
  hand_out(id, request, bytes);
  return id;
}

AllocatorModel::BlockId AllocatorModel::take_free_block(const Request& request) {
  Pool& pool = request.small ? small_ : large_;
  if (collects_garbage()) ++pool.num_searches;
  auto found = pool.free.lower_bound({request.stream, request.bytes, 0, 0});
  const auto id_of = [](const auto& position) { return std::get<BlockId>(*position); };
  const auto usable = [&](const auto& position) {
    return position != pool.free.end() && std::get<0>(*position) == request.stream;
  };
  if (!usable(found)) return kNone;
  // A block of an expandable area counts as large as it could grow.
  for (auto next = std::next(found);
       node(id_of(found)).expandable && usable(next) && expandable_bytes(id_of(next)) < expandable_bytes(id_of(found));
       ++next) {
    found = next;
  }
  const BlockId id = id_of(found);
  const std::int64_t bytes = node(id).bytes;
  if (request.bytes < max_split_bytes()) {
    if (bytes >= max_split_bytes()) return kNone;
  } else if (bytes >= request.bytes + kMaxNonSplitRoundingBytes) {
    return kNone;
  }
  pool.free.erase(found);
  return id;
}

AllocatorModel::BlockId AllocatorModel::take_new_segment(const Request& request) {
  const std::int64_t reserved = statistics_.reserved.current;
  if (settings_.limit_bytes > 0 && reserved + request.segment_bytes > settings_.limit_bytes) return kNone;
  if (settings_.expandable_segments) return take_expandable(request);
  if (settings_.capacity_bytes > 0 && reserved + request.segment_bytes > settings_.capacity_bytes) return kNone;
  Node segment;
  segment.address = place_(request.segment_bytes, request.stream);
  segment.bytes = request.segment_bytes;
  segment.stream = request.stream;
  segment.small = request.small;
  statistics_.reserved.add(segment.bytes);
  ++statistics_.num_segments;
  tell(SegmentEvent::Action::allocate, segment.address, segment.bytes, segment.stream);
  return new_node(segment);
}

void AllocatorModel::hand_out(BlockId id, const Request& request, std::int64_t requested_bytes) {
  const bool was_split = is_split(node(id));
  const std::int64_t rest = node(id).bytes - request.bytes;
  const bool split = request.small || settings_.expandable_segments
                         ? rest >= kMinBlockBytes
                         : request.bytes < max_split_bytes() && rest > kSmallBytes;
  std::int64_t inactive_change = was_split ? -node(id).bytes : 0;
  if (split) {
    // The rest keeps no history: it is a new block behind the one handed out.
    Node remaining = node(id);
    remaining.address += request.bytes;
    remaining.bytes = rest;
    node(id).bytes = request.bytes;
    const BlockId behind = new_node(remaining);
    link(id, behind, node(id).next);
    insert_free(behind);
    inactive_change += rest;
  }
  Node& block = node(id);
  if (!block.expandable) statistics_.inactive_split.add(inactive_change);
  block.allocated = true;
  block.requested_bytes = requested_bytes;
  statistics_.allocated.add(block.bytes);
  statistics_.active.add(block.bytes);
  statistics_.requested.add(requested_bytes);
}

void AllocatorModel::begin_free(BlockId id) {
  Node& block = node(id);
  statistics_.allocated.add(-block.bytes);
  block.allocated = false;
  block.waiting = true;
}

void AllocatorModel::free(BlockId id) {
  if (!node(id).waiting) begin_free(id);
  node(id).waiting = false;
  const std::int64_t bytes = node(id).bytes;
  const bool expandable = node(id).expandable;
  statistics_.active.add(-bytes);
  statistics_.requested.add(-node(id).requested_bytes);
  const std::int64_t joined = merge(id, node(id).previous) + merge(id, node(id).next);
  insert_free(id);
  if (!expandable) statistics_.inactive_split.add((is_split(node(id)) ? node(id).bytes : 0) - joined);
}

// `id` swallows its neighbour if that is as free and as mapped as itself. Returns the bytes gained.
std::int64_t AllocatorModel::merge(BlockId id, BlockId neighbour) {
  if (neighbour == kNone) return 0;
  Node& block = node(id);
  const Node other = node(neighbour);
  if (other.allocated || other.waiting || other.mapped != block.mapped) return 0;
  Pool& pool = pool_of(block);
  if (other.mapped) {
    pool.free.erase(free_key(other, neighbour));
  } else {
    pool.unmapped.erase({other.stream, other.address, neighbour});
  }
  if (block.previous == neighbour) {
    block.address = other.address;
    block.previous = other.previous;
    if (block.previous != kNone) node(block.previous).next = id;
  } else {
    block.next = other.next;
    if (block.next != kNone) node(block.next).previous = id;
  }
  block.bytes += other.bytes;
  drop_node(neighbour);
  return other.bytes;
}

// Oversize blocks are given back one by one before everything is: the smallest that would do, else the largest ones
// until they add up.
bool AllocatorModel::release_oversize(const Request& request) {
  if (!settings_.max_split_size_bytes) return false;
  Pool& pool = request.small ? small_ : large_;
  const std::int64_t wanted = std::max(request.bytes, *settings_.max_split_size_bytes);
  const auto node_at = [&](auto position) { return node(std::get<BlockId>(*position)); };
  auto found = pool.free.lower_bound({request.stream, wanted, 0, 0});
  if (found != pool.free.end() && node_at(found).stream == request.stream && !node_at(found).expandable) {
    release_segment(std::get<BlockId>(*found));
    return true;
  }
  std::int64_t released = 0;
  while (found != pool.free.begin() && released < wanted) {
    const auto last = std::prev(found);
    const Node block = node_at(last);
    if (block.bytes < *settings_.max_split_size_bytes || block.stream != request.stream) break;
    if (block.expandable) {
      found = last;
      continue;
    }
    release_segment(std::get<BlockId>(*last));
    released += block.bytes;
  }
  return released >= wanted;
}

// Gives back whole free segments of at least average age until the threshold is met.
void AllocatorModel::collect_garbage() {
  const auto threshold =
      static_cast<std::int64_t>(settings_.garbage_collection_threshold * static_cast<double>(settings_.limit_bytes));
  const std::int64_t target = statistics_.reserved.current - threshold;
  if (target <= 0) return;
  const auto age = [&](const Node& block) { return large_.num_searches - block.age_base; };
  std::int64_t total_age = 0;
  std::int64_t count = 0;
  for (const auto& key : large_.free) {
    const Node& block = node(std::get<BlockId>(key));
    if (is_split(block)) continue;
    total_age += age(block);
    ++count;
  }
  std::int64_t reclaimed = 0;
  for (bool any = true; reclaimed < target && any && count > 0;) {
    const double threshold_age = static_cast<double>(total_age) / static_cast<double>(count);
    any = false;
    for (auto position = large_.free.begin(); position != large_.free.end();) {
      const BlockId id = std::get<BlockId>(*position++);
      const Node block = node(id);
      if (is_split(block) || block.expandable || static_cast<double>(age(block)) < threshold_age) continue;
      any = true;
      reclaimed += block.bytes;
      total_age -= age(block);
      --count;
      release_segment(id);
    }
  }
}

void AllocatorModel::empty_cache() {
  release_free(large_);
  release_free(small_);
}

void AllocatorModel::release_free(Pool& pool) {
  std::vector<BlockId> to_unmap;
  for (auto position = pool.free.begin(); position != pool.free.end();) {
    const BlockId id = std::get<BlockId>(*position++);
    if (node(id).expandable) {
      to_unmap.push_back(id);
    } else if (!is_split(node(id))) {
      release_segment(id);
    }
  }
  for (const BlockId id : to_unmap) unmap(id);
}

void AllocatorModel::release_segment(BlockId id) {
  const Node block = node(id);
  pool_of(block).free.erase(free_key(block, id));
  statistics_.reserved.add(-block.bytes);
  --statistics_.num_segments;
  drop_node(id);
  tell(SegmentEvent::Action::free, block.address, block.bytes, block.stream);
}

void AllocatorModel::set_capacity(std::int64_t capacity_bytes, std::int64_t limit_bytes) {
  settings_.capacity_bytes = capacity_bytes;
  settings_.limit_bytes = limit_bytes;
}

void AllocatorModel::reset_peaks() {
  for (auto* figure : {&statistics_.allocated, &statistics_.active, &statistics_.reserved, &statistics_.requested,
                       &statistics_.inactive_split}) {
    figure->peak = figure->current;
  }
}

AllocatorModel::BlockId AllocatorModel::new_node(const Node& values) {
  BlockId id = static_cast<BlockId>(nodes_.size());
  if (unused_nodes_.empty()) {
    nodes_.push_back(values);
  } else {
    id = unused_nodes_.back();
    unused_nodes_.pop_back();
    node(id) = values;
  }
  node(id).alive = true;
  return id;
}

void AllocatorModel::drop_node(BlockId id) {
  node(id).alive = false;
  unused_nodes_.push_back(id);
}

void AllocatorModel::link(BlockId before, BlockId id, BlockId after) {
  node(id).previous = before;
  node(id).next = after;
  if (before != kNone) node(before).next = id;
  if (after != kNone) node(after).previous = id;
}

void AllocatorModel::insert_free(BlockId id) {
  Node& block = node(id);
  Pool& pool = pool_of(block);
  block.age_base = pool.num_searches;
  pool.free.insert(free_key(block, id));
}

void AllocatorModel::tell(SegmentEvent::Action action, std::int64_t address, std::int64_t bytes, std::int64_t stream) {
  if (listener_) listener_({action, address, bytes, stream});
}

}  // namespace assay
