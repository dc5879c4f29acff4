#include <algorithm>

#include "harness/memory/allocator_model.h"

// Expandable areas: one stretch of addresses for each stream and pool, of which pages are mapped as they are needed.

namespace assay {
namespace {

// Of a device whose memory nobody stated.
constexpr std::int64_t kAssumedDeviceBytes = std::int64_t{80} << 30;

std::int64_t page_bytes(bool small) {
  return small ? AllocatorModel::kSmallSegmentBytes : AllocatorModel::kLargeSegmentBytes;
}

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

}  // namespace

// Address space of an area: there is room to map pages at the end while others, in use, cannot be moved.
std::int64_t AllocatorModel::area_bytes(std::int64_t at_least, bool small) const {
  const std::int64_t device_bytes = settings_.capacity_bytes > 0 ? settings_.capacity_bytes : kAssumedDeviceBytes;
  return round_up(std::max(device_bytes + device_bytes / 8, at_least), page_bytes(small));
}

std::int64_t AllocatorModel::expandable_bytes(BlockId id) const {
  const Node& block = node(id);
  const bool can_grow = block.next != kNone && !node(block.next).mapped;
  return block.bytes + (can_grow ? node(block.next).bytes : 0);
}

bool AllocatorModel::is_free_or_unmapped(BlockId id) const {
  return id != kNone && !node(id).allocated && !node(id).waiting;
}

bool AllocatorModel::has_room(BlockId id, std::int64_t bytes) const {
  std::int64_t room = 0;
  for (; room < bytes && is_free_or_unmapped(id); id = node(id).next) room += node(id).bytes;
  return room >= bytes;
}

// The lowest stretch of free and unmapped addresses that is large enough; a new area if there is none.
AllocatorModel::BlockId AllocatorModel::find_expandable(const Request& request) {
  Pool& pool = request.small ? small_ : large_;
  for (auto position = pool.unmapped.lower_bound({request.stream, 0, 0});
       position != pool.unmapped.end() && std::get<0>(*position) == request.stream; ++position) {
    BlockId id = std::get<BlockId>(*position);
    if (is_free_or_unmapped(node(id).previous)) id = node(id).previous;
    if (has_room(id, request.bytes)) return id;
  }
  Node area;
  area.bytes = area_bytes(request.bytes, request.small);
  area.address = place_(area.bytes, request.stream);
  area.stream = request.stream;
  area.small = request.small;
  area.mapped = false;
  area.expandable = true;
  const BlockId id = new_node(area);
  pool.unmapped.insert({area.stream, area.address, id});
  return id;
}

AllocatorModel::BlockId AllocatorModel::take_expandable(const Request& request) {
  BlockId id = find_expandable(request);
  if (!node(id).mapped && !map(id, std::min(node(id).bytes, request.bytes))) return kNone;
  while (node(id).bytes < request.bytes) {
    const BlockId next = node(id).next;
    if (!map(next, std::min(request.bytes - node(id).bytes, node(next).bytes))) return kNone;
    id = next;  // it has swallowed the block before it
  }
  pool_of(node(id)).free.erase(free_key(node(id), id));
  return id;
}

// Maps whole pages from the start of an unmapped stretch.
bool AllocatorModel::map(BlockId id, std::int64_t bytes) {
  const Node stretch = node(id);
  const std::int64_t mapped = round_up(bytes, page_bytes(stretch.small));
  if (settings_.capacity_bytes > 0 && statistics_.reserved.current + mapped > settings_.capacity_bytes) return false;
  Pool& pool = pool_of(stretch);
  pool.unmapped.erase({stretch.stream, stretch.address, id});
  node(id).mapped = true;
  if (mapped < stretch.bytes) {
    Node remaining = stretch;
    remaining.address += mapped;
    remaining.bytes -= mapped;
    const BlockId rest = new_node(remaining);
    link(id, rest, stretch.next);
    pool.unmapped.insert({remaining.stream, remaining.address, rest});
    node(id).bytes = mapped;
  }
  merge(id, node(id).previous);
  merge(id, node(id).next);
  insert_free(id);
  statistics_.reserved.add(mapped);
  tell(SegmentEvent::Action::map, stretch.address, mapped, stretch.stream);
  return true;
}

// Gives back the pages that lie wholly within a free block.
void AllocatorModel::unmap(BlockId id) {
  const Node block = node(id);
  Pool& pool = pool_of(block);
  const std::int64_t page = page_bytes(block.small);
  // Areas start at a multiple of their pages' size only by chance, so pages count from the area's start.
  BlockId first = id;
  while (node(first).previous != kNone) first = node(first).previous;
  const std::int64_t start = node(first).address;
  const std::int64_t begin = start + round_up(block.address - start, page);
  const std::int64_t end = start + (block.address + block.bytes - start) / page * page;
  if (begin >= end) return;
  pool.free.erase(free_key(block, id));
  node(id).address = begin;
  node(id).bytes = end - begin;
  node(id).mapped = false;
  const auto keep = [&](std::int64_t address, std::int64_t bytes, BlockId before, BlockId after) {
    if (bytes == 0) return;
    Node kept = block;
    kept.address = address;
    kept.bytes = bytes;
    const BlockId kept_id = new_node(kept);
    link(before, kept_id, after);
    insert_free(kept_id);
  };
  keep(block.address, begin - block.address, block.previous, id);
  keep(end, block.address + block.bytes - end, id, block.next);
  merge(id, node(id).previous);
  merge(id, node(id).next);
  statistics_.reserved.add(begin - end);
  tell(SegmentEvent::Action::unmap, begin, end - begin, block.stream);
  if (is_split(node(id))) {
    pool.unmapped.insert({block.stream, node(id).address, id});
  } else {
    drop_node(id);  // the whole area
  }
}

}  // namespace assay
