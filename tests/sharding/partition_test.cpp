#include "sharding/partition.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace assay {
namespace {

struct Case {
  const char* name;
  std::vector<FlatParameterSize> parameters;
};

const Case kCases[] = {
    {"mixed", {{64, false}, {4096, true}, {2048, true}, {64, false}, {10240, true}}},
    {"odd sizes", {{1, true}, {17, false}, {33, true}, {15, false}, {16, true}, {31, false}, {7, true}}},
    {"decayed only", {{5, true}, {100, true}}},
    {"plain only", {{5, false}, {100, false}}},
    {"single element", {{1, false}}},
    {"nothing", {}},
    {"large", {{std::int64_t{1} << 40, true}, {3, false}}},
};

// The rules of the layout, over odd sizes and worlds that divide nothing.
TEST(Partition, PartsAreAlignedDisjointOrderedAndEqual) {
  for (const auto& [name, parameters] : kCases) {
    for (int world = 1; world <= 7; ++world) {
      SCOPED_TRACE(std::string(name) + ", world " + std::to_string(world));
      const FlatLayout layout = make_flat_layout(parameters, world);
      ASSERT_EQ(layout.offsets.size(), parameters.size());
      EXPECT_EQ(layout.shard_numel * world, layout.numel);
      EXPECT_EQ(layout.shard_numel % kFlatAlignment, 0);
      EXPECT_EQ(layout.decayed_end % kFlatAlignment, 0);

      std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
      std::int64_t used = 0;
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::int64_t begin = layout.offsets[i];
        const std::int64_t end = begin + parameters[i].numel;
        EXPECT_EQ(begin % kFlatAlignment, 0) << i;
        EXPECT_LE(end, layout.numel) << i;
        if (parameters[i].decayed) {
          EXPECT_LE(end, layout.decayed_end) << i;
        } else {
          EXPECT_GE(begin, layout.decayed_end) << i;
        }
        ranges.emplace_back(begin, end);
        used += parameters[i].numel;
      }
      std::sort(ranges.begin(), ranges.end());
      for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);

      // No more padding than the rules ask for.
      const auto most_padding =
          static_cast<std::int64_t>(parameters.size()) * (kFlatAlignment - 1) + kFlatAlignment * (world - 1);
      EXPECT_LE(layout.numel - used, most_padding);
    }
  }
}

// By hand: 20 decayed elements take 32, then 3 plain ones take 16: 48 in all, three shards of 16, or two of 32.
TEST(Partition, ALayoutByHand) {
  const FlatLayout layout = make_flat_layout({{3, false}, {20, true}}, 3);
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{32, 0}));
  EXPECT_EQ(layout.decayed_end, 32);
  EXPECT_EQ(layout.numel, 48);
  EXPECT_EQ(layout.shard_numel, 16);
  EXPECT_EQ(make_flat_layout({{3, false}, {20, true}}, 2).numel, 64);
}

// Where a parameter lies does not depend on the number of ranks, only the padding at the end does.
TEST(Partition, OffsetsAreTheSameForEveryWorld) {
  for (const auto& [name, parameters] : kCases) {
    for (int world = 2; world <= 7; ++world) {
      EXPECT_EQ(make_flat_layout(parameters, world).offsets, make_flat_layout(parameters, 1).offsets) << name;
    }
  }
}

}  // namespace
}  // namespace assay
