#pragma once

#include <cstdint>
#include <map>

namespace assay {

/// Pieces of device memory by address, as events take and give them back. Stretches of expandable areas grow together
/// and may be given back in parts; other pieces come and go as they are.
class SegmentTable {
 public:
  struct Segment {
    std::int64_t bytes = 0;
    std::int64_t stream = 0;
    bool small = false;
    bool expandable = false;
  };

  /// False, and nothing changes, if it overlaps another one.
  bool add(std::int64_t address, const Segment& segment);
  /// False, and nothing changes, if there is no such piece: a whole one, or a part of an expandable stretch.
  bool remove(std::int64_t address, std::int64_t bytes);
  bool overlaps(std::int64_t address, std::int64_t bytes) const;
  /// The one that holds all these bytes, or null.
  const Segment* find(std::int64_t address, std::int64_t bytes) const;
  /// One that ends or starts there, or null.
  const Segment* neighbour(std::int64_t address, std::int64_t bytes) const;

  const std::map<std::int64_t, Segment>& by_address() const { return segments_; }
  std::int64_t reserved_bytes() const { return reserved_; }

 private:
  std::map<std::int64_t, Segment>::const_iterator at_or_before(std::int64_t address) const;

  std::map<std::int64_t, Segment> segments_;
  std::int64_t reserved_ = 0;
};

}  // namespace assay
