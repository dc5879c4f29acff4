#include "harness/core/nearest.h"

#include <gtest/gtest.h>

namespace assay {
namespace {

TEST(Nearest, DistanceCountsSlipsOfTheKeyboard) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("train", "trian"), 1U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("Max-Steps", "max_steps"), 0U);
}

TEST(Nearest, OnlyWhatIsNearIsNamed) {
  const std::vector<std::string> names{"validate", "launch", "verify"};
  EXPECT_EQ(nearest_name("valdate", names), "validate");
  EXPECT_EQ(nearest_name("lunch", names), "launch");
  EXPECT_EQ(nearest_name("frobnicate", names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace assay
