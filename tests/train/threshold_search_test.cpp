#include "harness/train/threshold_search.h"

#include <gtest/gtest.h>

#include <set>

namespace assay {
namespace {

// Every threshold of every small grid, from every start: the answer is known beforehand.
TEST(ThresholdSearch, FindsEveryThresholdFromEveryStartAndAsksNothingTwice) {
  for (const std::int64_t step : {1, 3, 8}) {
    for (const std::int64_t size : {1, 2, 5, 16, 21}) {
      const ValueGrid grid{step, 2 * step, (1 + size) * step};
      for (std::int64_t start = grid.low; start <= grid.high; start += step) {
        for (std::int64_t last = grid.low - step; last <= grid.high; last += step) {
          SCOPED_TRACE(testing::Message()
                       << "step " << step << ", " << size << " values, start " << start << ", last " << last);
          std::set<std::int64_t> asked;
          const auto threshold = find_threshold(grid, start, [&](std::int64_t value) {
            EXPECT_TRUE(asked.insert(value).second) << value << " again";
            EXPECT_TRUE(value >= grid.low && value <= grid.high && value % step == 0) << value;
            return value <= last;
          });
          EXPECT_EQ(threshold.last_good, last < grid.low ? std::nullopt : std::optional(last));
          EXPECT_EQ(threshold.first_bad, last == grid.high ? std::nullopt : std::optional(last + step));
          if (start == last && last < grid.high) {
            EXPECT_EQ(asked.size(), 2U);
          }
        }
      }
    }
  }
}

TEST(ThresholdSearch, FarAwayCostsTwiceTheLogarithm) {
  const ValueGrid grid{1, 1, std::int64_t{1} << 20};
  int num_asked = 0;
  const auto threshold = find_threshold(grid, 1, [&](std::int64_t value) {
    ++num_asked;
    return value <= 700'001;
  });
  EXPECT_EQ(threshold.last_good, 700'001);
  EXPECT_LE(num_asked, 2 * 20 + 1);
}

}  // namespace
}  // namespace assay
