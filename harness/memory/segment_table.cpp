#include "harness/memory/segment_table.h"

#include <iterator>

namespace assay {
namespace {

bool grow_together(const SegmentTable::Segment& a, const SegmentTable::Segment& b) {
  return a.expandable && b.expandable && a.stream == b.stream && a.small == b.small;
}

}  // namespace

std::map<std::int64_t, SegmentTable::Segment>::const_iterator SegmentTable::at_or_before(std::int64_t address) const {
  const auto after = segments_.upper_bound(address);
  return after == segments_.begin() ? segments_.end() : std::prev(after);
}

const SegmentTable::Segment* SegmentTable::find(std::int64_t address, std::int64_t bytes) const {
  const auto found = at_or_before(address);
  if (found == segments_.end() || found->first + found->second.bytes < address + bytes) return nullptr;
  return &found->second;
}

const SegmentTable::Segment* SegmentTable::neighbour(std::int64_t address, std::int64_t bytes) const {
  const auto before = at_or_before(address);
  if (before != segments_.end() && before->first + before->second.bytes == address) return &before->second;
  const auto behind = segments_.find(address + bytes);
  return behind == segments_.end() ? nullptr : &behind->second;
}

bool SegmentTable::overlaps(std::int64_t address, std::int64_t bytes) const {
  const auto behind = segments_.lower_bound(address);
  if (behind != segments_.end() && behind->first < address + bytes) return true;
  const auto before = at_or_before(address);
  return before != segments_.end() && before->first + before->second.bytes > address;
}

bool SegmentTable::add(std::int64_t address, const Segment& segment) {
  if (overlaps(address, segment.bytes)) return false;
  const auto behind = segments_.lower_bound(address);
  const auto before = at_or_before(address);
  reserved_ += segment.bytes;
  auto joined = segment;
  if (behind != segments_.end() && behind->first == address + segment.bytes && grow_together(behind->second, segment)) {
    joined.bytes += behind->second.bytes;
    segments_.erase(behind);
  }
  if (before != segments_.end() && before->first + before->second.bytes == address &&
      grow_together(before->second, segment)) {
    segments_[before->first].bytes += joined.bytes;
  } else {
    segments_.emplace(address, joined);
  }
  return true;
}

bool SegmentTable::remove(std::int64_t address, std::int64_t bytes) {
  const auto found = at_or_before(address);
  if (found == segments_.end()) return false;
  const auto [start, segment] = *found;
  const auto end = start + segment.bytes;
  if (address + bytes > end) return false;
  if (!segment.expandable && (address != start || bytes != segment.bytes)) return false;
  segments_.erase(found);
  reserved_ -= bytes;
  const auto keep = [&](std::int64_t from, std::int64_t to) {
    if (from == to) return;
    auto kept = segment;
    kept.bytes = to - from;
    segments_.emplace(from, kept);
  };
  keep(start, address);
  keep(address + bytes, end);
  return true;
}

}  // namespace assay
