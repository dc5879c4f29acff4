#include <algorithm>

#include "harness/memory/allocator_model.h"

// The model's state as a snapshot shows it, in both directions.

namespace assay {
namespace {

using State = AllocatorSegment::State;

State state_of(bool allocated, bool waiting) {
  if (allocated) return State::allocated;
  return waiting ? State::waiting : State::free;
}

}  // namespace

// The blocks of one segment behind the block `before` (of the same expandable area) or behind none. Returns the last.
AllocatorModel::BlockId AllocatorModel::begin_stretch(const AllocatorSegment& segment, BlockId before,
                                                      std::vector<BlockId>& in_use) {
  Node piece;
  piece.stream = segment.stream;
  piece.small = segment.small;
  piece.expandable = segment.expandable;
  const auto add = [&](std::int64_t address, std::int64_t end) {
    piece.address = address;
    piece.bytes = end - address;
    const BlockId id = new_node(piece);
    link(before, id, kNone);
    return before = id;
  };
  std::vector<BlockId> free;
  std::int64_t address = segment.address;
  for (const auto& block : segment.blocks) {
    if (block.state == State::free) continue;
    if (block.address > address) free.push_back(add(address, block.address));
    const BlockId id = add(block.address, block.address + block.bytes);
    node(id).allocated = block.state == State::allocated;
    node(id).waiting = block.state == State::waiting;
    node(id).requested_bytes = block.requested_bytes;
    if (block.state == State::allocated) statistics_.allocated.add(block.bytes);
    statistics_.active.add(block.bytes);
    statistics_.requested.add(block.requested_bytes);
    in_use.push_back(id);
    address = block.address + block.bytes;
  }
  if (address < segment.address + segment.bytes) free.push_back(add(address, segment.address + segment.bytes));
  for (const BlockId id : free) {
    insert_free(id);
    if (!segment.expandable && is_split(node(id))) statistics_.inactive_split.add(node(id).bytes);
  }
  statistics_.reserved.add(segment.bytes);
  return before;
}

// An unmapped stretch from behind `last` to `area_end`.
void AllocatorModel::end_area(BlockId last, std::int64_t area_end) {
  Node rest = node(last);
  rest.address += rest.bytes;
  rest.bytes = area_end - rest.address;
  rest.allocated = rest.waiting = rest.mapped = false;
  if (rest.bytes <= 0) return;
  const BlockId id = new_node(rest);
  link(last, id, kNone);
  (rest.small ? small_ : large_).unmapped.insert({rest.stream, rest.address, id});
}

std::vector<AllocatorModel::BlockId> AllocatorModel::begin_with(std::vector<AllocatorSegment> segments) {
  const auto area_of = [](const AllocatorSegment& segment) {
    return std::tuple(segment.expandable, segment.stream, segment.small);
  };
  std::sort(segments.begin(), segments.end(), [&](const auto& a, const auto& b) {
    return std::tuple(area_of(a), a.address) < std::tuple(area_of(b), b.address);
  });
  std::vector<BlockId> in_use;
  BlockId last = kNone;
  std::int64_t area_end = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto& segment = segments[i];
    if (!segment.expandable) {
      begin_stretch(segment, kNone, in_use);
      ++statistics_.num_segments;
      continue;
    }
    const bool same_area = i > 0 && area_of(segments[i - 1]) == area_of(segment);
    if (same_area) {
      end_area(last, segment.address);
      if (node(last).next != kNone) last = node(last).next;
    } else {
      last = kNone;
      area_end = segment.address + area_bytes(segment.bytes, segment.small);
    }
    last = begin_stretch(segment, last, in_use);
    const bool area_goes_on = i + 1 < segments.size() && area_of(segments[i + 1]) == area_of(segment);
    if (!area_goes_on) end_area(last, area_end);
  }
  std::sort(in_use.begin(), in_use.end(), [&](BlockId a, BlockId b) { return address(a) < address(b); });
  return in_use;
}

std::int64_t AllocatorModel::largest_free_block_bytes() const {
  std::int64_t largest = 0;
  for (const Pool* pool : {&small_, &large_}) {
    for (const auto& key : pool->free) largest = std::max(largest, std::get<1>(key));
  }
  return largest;
}

std::vector<AllocatorSegment> AllocatorModel::segments() const {
  std::vector<AllocatorSegment> found;
  for (const Node& first : nodes_) {
    const bool starts = first.previous == kNone || !node(first.previous).mapped;
    if (!first.alive || !first.mapped || !starts) continue;
    AllocatorSegment segment{first.address, 0, first.stream, first.small, first.expandable, {}};
    for (const Node* block = &first;; block = &node(block->next)) {
      segment.blocks.push_back(
          {block->address, block->bytes, block->requested_bytes, state_of(block->allocated, block->waiting)});
      segment.bytes += block->bytes;
      if (block->next == kNone || !node(block->next).mapped) break;
    }
    found.push_back(std::move(segment));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return found;
}

}  // namespace assay
