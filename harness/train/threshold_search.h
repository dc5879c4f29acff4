#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace assay {

/// The values that are asked: multiples of `step` (1 or more) from `low` to `high`, which are such multiples.
struct ValueGrid {
  std::int64_t step = 1;
  std::int64_t low = 1;
  std::int64_t high = 1;
};

/// Where a property ends that holds for small values and not for large ones.
struct Threshold {
  std::optional<std::int64_t> last_good;  ///< nothing: not even `low`
  std::optional<std::int64_t> first_bad;  ///< nothing: all up to `high` are good
};

/// Asks `good` from `start` (of the grid) on: away from it by doubling strides until the answer changes, then between
/// the two by halves. No value is asked twice; a right guess costs two. Throws what `good` throws.
Threshold find_threshold(const ValueGrid& grid, std::int64_t start, const std::function<bool(std::int64_t)>& good);

}  // namespace assay
