#include "harness/train/threshold_search.h"

#include <algorithm>

namespace assay {

Threshold find_threshold(const ValueGrid& grid, std::int64_t start, const std::function<bool(std::int64_t)>& good) {
  Threshold threshold;
  const auto ask = [&](std::int64_t value) {
    const bool is_good = good(value);
    (is_good ? threshold.last_good : threshold.first_bad) = value;
    return is_good;
  };
  const bool upwards = ask(start);
  std::int64_t stride = grid.step;
  for (std::int64_t value = start; value != (upwards ? grid.high : grid.low); stride *= 2) {
    value = upwards ? value + std::min(stride, grid.high - value) : value - std::min(stride, value - grid.low);
    if (ask(value) != upwards) break;
  }
  if (!threshold.last_good || !threshold.first_bad) return threshold;
  while (*threshold.first_bad - *threshold.last_good > grid.step) {
    const std::int64_t num_between = (*threshold.first_bad - *threshold.last_good) / grid.step;
    ask(*threshold.last_good + num_between / 2 * grid.step);
  }
  return threshold;
}

}  // namespace assay
