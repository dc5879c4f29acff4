#include "harness/memory/overhead.h"

#include <gtest/gtest.h>

#include "tests/memory/formula_case.h"

namespace assay {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(Overhead, FollowsThePublishedTable) {
  const auto a100 = cuda_overhead({80, 1, 8});
  EXPECT_EQ(a100.context, 481 * kMiB);
  EXPECT_EQ(a100.workspaces, 2 * 8'519'680);
  EXPECT_EQ(a100.communicators, 688'000'000);
  const auto h100 = cuda_overhead({90, 1, 2});
  EXPECT_EQ(h100.workspaces, 64 * kMiB);
  EXPECT_EQ(h100.communicators, 544'000'000);
  EXPECT_EQ(cuda_overhead({90, 3, 16}).communicators, 3 * 1'600'000'000LL);
  EXPECT_EQ(cuda_overhead({86, 1, 1}).communicators, 0);
}

TEST(Overhead, MeasuredValuesReplaceTheTable) {
  auto recipe = formula_recipe(Mode::pretrain, Precision::bf16);
  const OverheadFacts facts{90, 1, 8};
  const auto measured = overhead_of(recipe, facts, {1000, 2000});
  EXPECT_EQ(measured.total(), 1000 + 2000 + 64 * kMiB);
  EXPECT_EQ(overhead_of(recipe, facts, {{}, 2000}).context, cuda_overhead(facts).context);
  const auto config = zoo_model("llama-3-8b");
  EXPECT_EQ(formula_bytes(recipe, config, 8, measured).overhead, measured.total());
  EXPECT_EQ(formula_bytes(recipe, config, 8).overhead, overhead_of(recipe, facts).total());
  recipe.device = DeviceChoice::cpu;
  EXPECT_EQ(overhead_of(recipe, facts, {1000, 2000}).total(), 0);
}

}  // namespace
}  // namespace assay
