#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/acceptance/evaluate.h"
#include "tests/acceptance/synthetic_run.h"

namespace assay {
namespace {

using testing::HasSubstr;

TEST(Evaluation, ARunInWhichAllIsWellIsAccepted) {
  const auto results = evaluate_run(passing_run());
  const auto verdict = verdict_of(results);
  EXPECT_EQ(verdict.name, "accepted") << summary(results);
  EXPECT_EQ(verdict.exit_code, 0);
  EXPECT_GT(verdict.num_skip, 0);  // GPUs and capacity are not there, and that is said
  for (const char* name :
       {"load", "precision", "shape", "forward_backward", "accumulate_update", "save", "resume", "all_ranks"}) {
    const auto result = result_of(results, std::string("train.") + name);
    ASSERT_TRUE(result) << name;
    EXPECT_EQ(result->status, Status::pass) << name;
  }
  EXPECT_EQ(result_of(results, "train.shape")->measured, 128);
  EXPECT_EQ(result_of(results, "train.loss_slope")->measured, -0.25);
  EXPECT_EQ(result_of(results, "train.save")->measured, 3);
  EXPECT_EQ(result_of(results, "memory.allocated")->measured, 0);
  EXPECT_EQ(result_of(results, "utilization.ceiling_fraction")->measured, 0.5);
  EXPECT_NEAR(result_of(results, "memory.formula")->measured.get<double>(), 0.1, 1e-12);
}

TEST(Evaluation, RoomOnTheDiskIsForBothJobsAndOneCheckpointMore) {
  auto run = passing_run();
  run.machine["disk"]["free_bytes"] = 7200;  // 100 parameters x (4 + 2 x 4) bytes x (2 kept + 1) x 2 jobs
  EXPECT_EQ(result_of(evaluate_run(run), "machine.disk")->status, Status::pass);
  EXPECT_EQ(result_of(evaluate_run(run), "machine.disk")->measured, 7200);
}

// Dynamic loss scaling finds its scale by overflows: such a step has no norm, updates nothing, and is as it should be.
TEST(Evaluation, AStepThatOverflowedInFp16IsNoFailureUnlessAllDid) {
  const auto overflow = [](Json& step) {
    step["grad_norm"] = nullptr;
    step["overflowed"] = step["skipped"] = true;
  };
  const auto with_overflows_until = [&](std::int64_t last) {
    auto run = passing_run();
    for (const char* job : {"train-1", "twin-1"}) {
      for_events(run.jobs[job], "step", [&](Json& step) {
        if (step["step"] <= last) overflow(step);
      });
    }
    return evaluate_run(run);
  };
  const auto some = with_overflows_until(2);
  EXPECT_EQ(verdict_of(some).exit_code, 0) << summary(some);
  EXPECT_THAT(result_of(some, "train.forward_backward")->reason, HasSubstr("overflowed"));
  EXPECT_EQ(result_of(with_overflows_until(kSteps), "train.forward_backward")->status, Status::fail);

  auto run = passing_run();
  for_events(run.jobs["twin-1"], "step", [&](Json& step) {
    if (step["step"] == 2) step["loss"] = nullptr, overflow(step);
  });
  EXPECT_EQ(result_of(evaluate_run(run), "train.forward_backward")->status, Status::fail) << "a loss is not scaled";
}

TEST(Evaluation, TooLittleDeviceMemoryRejectsAndStartsNothing) {
  auto run = passing_run();
  run.recipe.device_memory_bytes = 1199;
  run.estimate["dry_run"].update({{"fits", false}, {"usable_bytes", 1199}});
  run.estimate["remedies"] = {
      {{"change", "train.micro_batch_size=1"}, {"peak_bytes", 1300}, {"fits", false}, {"by", "dry run"}},
      {{"change", "parallel.strategy=fsdp"}, {"peak_bytes", 700}, {"fits", true}, {"by", "dry run"}}};
  run.jobs.clear();
  const auto results = evaluate_run(run);
  EXPECT_EQ(result_of(results, "estimate.fits")->status, Status::fail);
  EXPECT_EQ(result_of(results, "estimate.fits")->measured, 1200);
  EXPECT_EQ(result_of(results, "estimate.fits")->limit, 1199);
  EXPECT_THAT(result_of(results, "estimate.fits")->reason, HasSubstr("parallel.strategy=fsdp (700 B by dry run)"));
  for (const char* stage : {"collective", "single", "train", "memory", "utilization"}) {
    const auto result = result_of(results, std::string(stage) + ".stage");
    ASSERT_TRUE(result) << stage;
    EXPECT_EQ(result->status, Status::skip);
    EXPECT_THAT(result->reason, HasSubstr("estimate"));
  }
  EXPECT_EQ(verdict_of(results).exit_code, 1);

  run = passing_run();
  run.recipe.device_memory_bytes = 1200;
  run.estimate["dry_run"].update({{"fits", true}, {"usable_bytes", 1200}});
  EXPECT_EQ(verdict_of(evaluate_run(run)).exit_code, 0) << "exactly enough is enough";
  run.estimate["dry_run"]["num_alloc_retries"] = 3;
  EXPECT_THAT(result_of(evaluate_run(run), "estimate.fits")->reason, HasSubstr("gives back what it keeps, 3 times"));
}

TEST(Evaluation, ReservedMemoryThatGrowsIsWatched) {
  auto run = passing_run();
  EXPECT_EQ(result_of(evaluate_run(run), "memory.reserved_growth")->measured, 0);
  for_events(run.jobs["twin-1"], "step", [](Json& e) { e["peak_reserved_bytes"] = 1200 + e["step"].get<int>(); });
  const auto result = result_of(evaluate_run(run), "memory.reserved_growth");
  EXPECT_EQ(result->measured, kSteps - 2);
  EXPECT_EQ(result->action, Action::watch);
  EXPECT_EQ(verdict_of(evaluate_run(run)).exit_code, 0) << "it is watched, not judged";
}

TEST(Evaluation, APartOfTheStagesAcceptsNothingAndSaysSo) {
  auto run = passing_run();
  run.recipe.accept.stages = {"machine", "estimate"};
  const auto results = evaluate_run(run);
  for (const char* stage : {"collective", "single", "train", "memory", "utilization"})
    EXPECT_EQ(result_of(results, std::string(stage) + ".stage")->status, Status::skip) << stage;
  EXPECT_THAT(result_of(results, "accept.stages")->reason, HasSubstr("collective, single, train, memory, utilization"));
  EXPECT_EQ(verdict_of(results).name, "incomplete");
  EXPECT_TRUE(stages_left_out(passing_run().recipe).empty());
}

TEST(Evaluation, AnInfoLimitJudgesNothing) {
  auto run = passing_run();
  run.limits.rows["loss_slope"].kind = LimitKind::info;
  for (const char* job : {"train-1", "twin-1"})
    for_events(run.jobs[job], "step", [](Json& e) { e["loss"] = e["step"]; });
  const auto result = result_of(evaluate_run(run), "train.loss_slope");
  EXPECT_EQ(result->status, Status::skip);
  EXPECT_EQ(result->measured, 1);
}

TEST(Evaluation, ABarrierIsPassedByThoseWithoutWrongElements) {
  auto run = passing_run();
  run.jobs["collective-1"].ranks[1][1]["num_wrong"] = 1;
  const auto result = result_of(evaluate_run(run), "collective.barrier");
  EXPECT_EQ(result->status, Status::fail);
  EXPECT_EQ(result->measured, 1);
}

TEST(Evaluation, FewerVisibleGpusThanProcessesIsAnError) {
  auto run = passing_run();
  run.recipe.device = DeviceChoice::cuda;
  run.machine["gpus"] = {{"found", {{{"model", "H200"}, {"bus", "01"}}}}};
  const auto results = evaluate_stage("collective", run);
  EXPECT_EQ(result_of(results, "collective.processes")->status, Status::fail);
  EXPECT_THAT(result_of(results, "collective.processes")->reason, HasSubstr("2 processes are planned and 1 GPUs"));
}

TEST(Evaluation, ACheckpointIntervalThatLeavesNothingToResumeFromIsHalved) {
  auto recipe = synthetic_recipe();
  for (const auto& [interval, used] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{4, 4}, {0, 5}, {10, 5}, {99, 5}}) {
    recipe.checkpoint.interval = interval;
    EXPECT_EQ(checkpoint_interval_of(recipe), used);
  }
  recipe.train.max_steps = 1;
  EXPECT_EQ(checkpoint_interval_of(recipe), 1);
}

}  // namespace
}  // namespace assay
