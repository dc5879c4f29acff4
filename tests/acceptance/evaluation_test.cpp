#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

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

TEST(Evaluation, TheSameFilesGiveTheSameResults) {
  const auto run = passing_run();
  const auto first = evaluate_run(run), second = evaluate_run(run);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(result_to_json(first[i]), result_to_json(second[i]));
}

/// One thing that is changed in a good run, and what must come of it.
struct Case {
  const char* name;
  std::function<void(RunRecord&)> change;
  const char* check;
  Status status;
  std::vector<int> ranks;
};

void expect_case(const Case& row) {
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

TEST(Evaluation, AMissingMeasurementIsIncompleteAndNeverAPass) {
  const std::vector<Case> cases{
      {"no memory event of rank 1",
       [](RunRecord& run) { drop_events(run.jobs["twin-1"], 1, "memory"); },
       "memory.allocated",
       Status::incomplete,
       {}},
      {"no category",
       [](RunRecord& run) {
         for_events(run.jobs["twin-1"], "memory", [](Json& e) { e["by_category"].erase("optimizer"); });
       },
       "memory.by_category",
       Status::incomplete,
       {}},
      {"no phase",
       [](RunRecord& run) { for_events(run.jobs["twin-1"], "memory", [](Json& e) { e["by_phase"].erase("update"); }); },
       "memory.by_phase",
       Status::incomplete,
       {}},
      {"null measurement",
       [](RunRecord& run) {
         for_events(run.jobs["twin-1"], "memory", [](Json& e) { e["measured_allocated_bytes"] = nullptr; });
       },
       "memory.allocated",
       Status::incomplete,
       {}},
      {"no end event of rank 1",
       [](RunRecord& run) { drop_events(run.jobs["twin-1"], 1, "end"); },
       "utilization.compute_share",
       Status::incomplete,
       {}},
      {"no GEMM ceiling",
       [](RunRecord& run) { for_events(run.jobs["twin-1"], "end", [](Json& e) { e["gemm_gflops"] = nullptr; }); },
       "utilization.ceiling_fraction",
       Status::incomplete,
       {}},
      {"no barrier",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[1].pop_back(); },
       "collective.barrier",
       Status::incomplete,
       {}},
      {"a smaller sum",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[0][0]["elements"] = 1024; },
       "collective.all_reduce_ones",
       Status::incomplete,
       {}},
      {"a rank without a line",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[1].clear(); },
       "collective.ranks",
       Status::incomplete,
       {1}},
      {"a rank that did not do every step",
       [](RunRecord& run) { run.jobs["twin-1"].ranks[1].erase(run.jobs["twin-1"].ranks[1].begin() + 5); },
       "train.all_ranks",
       Status::incomplete,
       {1}},
      {"no checkpoint of a step",
       [](RunRecord& run) {
         for_events(run.jobs["twin-1"], "checkpoint", [](Json& e) {
           if (e["saved_step"] == 8) e["saved_step"] = 7;
         });
       },
       "train.save",
       Status::incomplete,
       {}},
      {"no dtype",
       [](RunRecord& run) { for_events(run.jobs["train-1"], "run", [](Json& e) { e.erase("param_dtype"); }); },
       "train.precision",
       Status::incomplete,
       {}},
      {"no state hash",
       [](RunRecord& run) { for_events(run.jobs["twin-1"], "end", [](Json& e) { e.erase("state_hash"); }); },
       "train.resume",
       Status::incomplete,
       {}},
      {"nobody was killed",
       [](RunRecord& run) { run.jobs["train-1"] = undisturbed("train-1", kRanks, kSteps); },
       "train.failure_named",
       Status::incomplete,
       {}},
      {"it did not resume",
       [](RunRecord& run) { run.jobs["train-1"] = undisturbed("train-1", kRanks, kSteps); },
       "train.resume",
       Status::incomplete,
       {}},
      {"no time of a phase",
       [](RunRecord& run) { for_events(run.jobs["twin-1"], "step", [](Json& e) { e.erase("backward_seconds"); }); },
       "train.forward_backward",
       Status::incomplete,
       {}},
      {"no limit",
       [](RunRecord& run) { run.limits.rows.erase("memory_deviation"); },
       "memory.allocated",
       Status::incomplete,
       {}},
      {"no estimate", [](RunRecord& run) { run.estimate = nullptr; }, "estimate.dry_run", Status::incomplete, {}},
      {"no evaluation loss",
       [](RunRecord& run) { run.recipe.train.eval_interval = 5; },
       "train.eval_loss",
       Status::incomplete,
       {}},
      {"disk not known",
       [](RunRecord& run) { run.machine["disk"]["free_bytes"] = nullptr; },
       "machine.disk",
       Status::incomplete,
       {}},
      {"a share above one",
       [](RunRecord& run) { for_events(run.jobs["twin-1"], "end", [](Json& e) { e["gemm_gflops"] = 1e-4; }); },
       "utilization.ceiling_fraction",
       Status::incomplete,
       {}},
  };
  for (const auto& row : cases) expect_case(row);
}

TEST(Evaluation, AMeasurementThatIsNotGoodEnoughRejects) {
  const auto second_rank = [](RunRecord& run, const char* job, const char* kind,
                              const std::function<void(Json&)>& change) {
    for (auto& event : run.jobs[job].ranks[1]) {
      if (event["kind"] == kind) change(event);
    }
  };
  const std::vector<Case> cases{
      {"one byte more",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "memory", [](Json& e) { e["measured_allocated_bytes"] = 1001; });
       },
       "memory.allocated",
       Status::fail,
       {1}},
      {"one byte less in a category",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "memory", [](Json& e) { e["by_category"]["optimizer"] = 499; });
       },
       "memory.by_category",
       Status::fail,
       {1}},
      {"one byte in a phase",
       [&](RunRecord& run) { second_rank(run, "twin-1", "memory", [](Json& e) { e["by_phase"]["load"] = 901; }); },
       "memory.by_phase",
       Status::fail,
       {1}},
      {"a wrong sum",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[1][0]["max_abs_error"] = 1.0; },
       "collective.all_reduce_ones",
       Status::fail,
       {1}},
      {"one wrong element",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[0][0]["num_wrong"] = 1; },
       "collective.all_reduce_ones",
       Status::fail,
       {0}},
      {"a last bit of a loss after the resume",
       [&](RunRecord& run) {
         second_rank(run, "train-1", "step", [](Json& e) {
           if (e["step"] == 9) e["loss"] = std::nextafter(5 - 9 / 4.0, 9);
         });
       },
       "train.resume",
       Status::fail,
       {1}},
      {"another final state",
       [&](RunRecord& run) { second_rank(run, "train-1", "end", [](Json& e) { e["state_hash"] = "other"; }); },
       "train.resume",
       Status::fail,
       {1}},
      {"NaN loss",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "step", [](Json& e) {
           if (e["step"] == 3) e["loss"] = nullptr;
         });
       },
       "train.forward_backward",
       Status::fail,
       {1}},
      {"fewer tokens",
       [](RunRecord& run) { for_events(run.jobs["train-1"], "step", [](Json& e) { e["tokens"] = 64; }); },
       "train.shape",
       Status::fail,
       {}},
      {"another dtype",
       [&](RunRecord& run) { second_rank(run, "train-1", "run", [](Json& e) { e["param_dtype"] = "bf16"; }); },
       "train.precision",
       Status::fail,
       {1}},
      {"another model",
       [](RunRecord& run) { for_events(run.jobs["train-1"], "run", [](Json& e) { e["parameters"] = 101; }); },
       "train.load",
       Status::fail,
       {}},
      {"updates without effect",
       [](RunRecord& run) { for_events(run.jobs["twin-1"], "end", [](Json& e) { e["parameters_hash"] = "parameters of state0"; }); },
       "train.accumulate_update",
       Status::fail,
       {0, 1}},
      {"a rank with its own loss",
       [&](RunRecord& run) { second_rank(run, "twin-1", "step", [](Json& e) { e["loss"] = 1.0; }); },
       "train.all_ranks",
       Status::fail,
       {1}},
      {"a loss that rises",
       [](RunRecord& run) {
         for (const char* job : {"train-1", "twin-1"})
           for_events(run.jobs[job], "step", [](Json& e) { e["loss"] = e["step"]; });
       },
       "train.loss_slope",
       Status::fail,
       {}},
      {"a loss that stays",
       [](RunRecord& run) {
         for (const char* job : {"train-1", "twin-1"})
           for_events(run.jobs[job], "step", [](Json& e) { e["loss"] = 2.5; });
       },
       "train.loss_slope",
       Status::fail,
       {}},
      {"a rank that waits in its computing",
       [&](RunRecord& run) { second_rank(run, "twin-1", "end", [](Json& e) { e["compute_seconds"] = 40.0; }); },
       "utilization.compute_share_of_median",
       Status::fail,
       {1}},
      {"cores that do something else",
       [](RunRecord& run) {
         for_events(run.jobs["twin-1"], "end", [](Json& e) {
           e["compute_cpu_seconds"] = 8000.0;
           e["compute_seconds"] = 8000.0;
         });
       },
       "utilization.ceiling_fraction",
       Status::fail,
       {0, 1}},
      {"no room on the disk",
       [](RunRecord& run) { run.machine["disk"]["free_bytes"] = 5399; },
       "machine.disk",
       Status::fail,
       {}},
      {"no memory",
       [](RunRecord& run) { run.machine["memory"]["available_bytes"] = 1999; },
       "machine.memory",
       Status::fail,
       {}},
      {"another rank is named",
       [](RunRecord& run) { run.jobs["train-1"].launcher[2]["root_cause"]["rank"] = 0; },
       "train.failure_named",
       Status::fail,
       {}},
  };
  for (const auto& row : cases) expect_case(row);
}

TEST(Evaluation, RoomOnTheDiskIsForBothJobsAndOneCheckpointMore) {
  auto run = passing_run();
  run.machine["disk"]["free_bytes"] = 5400;  // (400 + 500) bytes x (2 kept + 1) x 2 jobs; each rank saves its part
  EXPECT_EQ(result_of(evaluate_run(run), "machine.disk")->status, Status::pass);
  EXPECT_EQ(result_of(evaluate_run(run), "machine.disk")->measured, 5400);
}

TEST(Evaluation, TooLittleDeviceMemoryRejectsAndStartsNothing) {
  auto run = passing_run();
  run.recipe.device_memory_bytes = 999;
  run.jobs.clear();
  const auto results = evaluate_run(run);
  EXPECT_EQ(result_of(results, "estimate.fits")->status, Status::fail);
  EXPECT_EQ(result_of(results, "estimate.fits")->limit, 999);
  for (const char* stage : {"collective", "single", "train", "memory", "utilization"}) {
    const auto result = result_of(results, std::string(stage) + ".stage");
    ASSERT_TRUE(result) << stage;
    EXPECT_EQ(result->status, Status::skip);
    EXPECT_THAT(result->reason, HasSubstr("estimate"));
  }
  EXPECT_EQ(verdict_of(results).exit_code, 1);

  run = passing_run();
  run.recipe.device_memory_bytes = 1000;
  EXPECT_EQ(verdict_of(evaluate_run(run)).exit_code, 0) << "exactly enough is enough";
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
