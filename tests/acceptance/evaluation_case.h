#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "harness/acceptance/evaluate.h"
#include "tests/acceptance/synthetic_run.h"

namespace assay {

/// One thing that is changed in a good run, and what must come of it.
struct Case {
  const char* name;
  std::function<void(RunRecord&)> change;
  const char* check;
  Status status;
  std::vector<int> ranks;
};

inline void expect_case(const Case& row) {
  auto run = passing_run();
  row.change(run);
  const auto results = evaluate_run(run);
  const auto result = result_of(results, row.check);
  ASSERT_TRUE(result) << row.name;
  EXPECT_EQ(name_of(result->status), name_of(row.status)) << row.name << ": " << result->reason;
  EXPECT_FALSE(result->reason.empty()) << row.name;
  if (!row.ranks.empty()) {
    EXPECT_EQ(result->ranks, row.ranks) << row.name;
  }
  EXPECT_EQ(verdict_of(results).exit_code, row.status == Status::fail ? 1 : 3) << row.name << "\n" << summary(results);
}

}  // namespace assay
