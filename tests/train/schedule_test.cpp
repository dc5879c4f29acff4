#include "harness/train/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace assay {
namespace {

std::vector<double> rates(const ScheduleOptions& schedule, std::int64_t max_steps) {
  std::vector<double> values;
  for (std::int64_t step = 1; step <= max_steps; ++step)
    values.push_back(learning_rate_at(schedule, 1.0, step, max_steps));
  return values;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-12) << "step " << i + 1;
}

// K06: the whole table for 10 steps with a warm-up of 4, by hand. Cosine over the 6 remaining steps without a floor:
// (1 + cos(pi k / 6)) / 2 for k = 0 ... 5.
TEST(Schedule, TableOfBothWarmupConventions) {
  const double half_root_3 = 0.8660254037844386;
  const std::vector<double> decay{1, (1 + half_root_3) / 2, 0.75, 0.5, 0.25, (1 - half_root_3) / 2};
  ScheduleOptions schedule{ScheduleName::cosine, 4, 0.0, WarmupConvention::transformers};
  std::vector<double> expected{0, 0.25, 0.5, 0.75};
  expected.insert(expected.end(), decay.begin(), decay.end());
  expect_near(rates(schedule, 10), expected);
  schedule.convention = WarmupConvention::torchtitan;
  expected = {0.25, 0.5, 0.75, 1};
  expected.insert(expected.end(), decay.begin(), decay.end());
  expect_near(rates(schedule, 10), expected);
}

TEST(Schedule, LinearConstantAndStable) {
  expect_near(rates({ScheduleName::linear, 0, 0.5, WarmupConvention::transformers}, 4), {1, 0.875, 0.75, 0.625});
  expect_near(rates({ScheduleName::constant, 0, 0.1, WarmupConvention::transformers}, 3), {1, 1, 1});
  expect_near(rates({ScheduleName::wsd, 0, 0.0, WarmupConvention::transformers}, 10), {1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5});
}

// K05
TEST(Schedule, AWarmupAsLongAsTheRunDividesNothingByZero) {
  for (const std::int64_t warmup : {10, 11, 0}) {
    for (const double rate : rates({ScheduleName::cosine, warmup, 0.1, WarmupConvention::transformers}, 10)) {
      EXPECT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= 1) << warmup;
    }
  }
  expect_near(rates({ScheduleName::cosine, 0, 0.1, WarmupConvention::transformers}, 1), {1});
}

// A31: a cosine never rises after warm-up.
TEST(Schedule, NeverRisesAfterWarmup) {
  for (const auto name : {ScheduleName::cosine, ScheduleName::linear, ScheduleName::wsd}) {
    const auto values = rates({name, 5, 0.1, WarmupConvention::transformers}, 100);
    for (std::size_t i = 6; i < values.size(); ++i) EXPECT_LE(values[i], values[i - 1]);
  }
}

}  // namespace
}  // namespace assay
