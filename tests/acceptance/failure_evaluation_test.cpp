#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/acceptance/evaluate.h"
#include "tests/acceptance/synthetic_run.h"

namespace assay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(FailureEvaluation, AnUnplannedKillIsIncompleteAndNamesRankAndPhase) {
  auto run = passing_run();
  auto job = empty_job("train-1", kRanks);
  for (int rank = 0; rank < kRanks; ++rank)
    add_attempt(job.ranks[static_cast<std::size_t>(rank)], rank, 1, 1, 3, 4, false);
  for_events(job, "step", [](Json& e) { e["loss"] = e["step"]; });  // it rises in the first steps
  // The other rank loses its connection: a consequence.
  job.ranks[0].push_back(
      event("error", 0, 3, 1, {{"error", "communication"}, {"message", "peer closed"}, {"phase", "update"}}));
  add_failure(job, 1, 1, 9, "backward", 3);
  run.jobs["train-1"] = job;
  run.jobs.erase("twin-1");
  const auto results = evaluate_run(run);
  const auto failure = result_of(results, "train.job");
  EXPECT_EQ(failure->status, Status::incomplete);
  EXPECT_THAT(failure->reason, testing::AllOf(HasSubstr("rank 1"), HasSubstr("node7"), HasSubstr("SIGKILL"),
                                              HasSubstr("phase backward"), HasSubstr("step 3")));
  EXPECT_THAT(failure->ranks, ElementsAre(1));
  EXPECT_THAT(failure->reason, testing::Not(HasSubstr("activations")));  // nothing says that memory was the cause
  EXPECT_EQ(result_of(results, "train.loss_slope")->status, Status::incomplete)
      << "two steps of a dead job prove nothing";
  EXPECT_EQ(result_of(results, "memory.stage")->status, Status::skip);
  EXPECT_EQ(verdict_of(results).exit_code, 3) << summary(results);
}

TEST(FailureEvaluation, NumericAndMemoryErrorsRejectOthersDoNot) {
  for (const auto& [kind, exit_code] : std::vector<std::pair<std::string, int>>{
           {"numeric", 1}, {"memory", 1}, {"io", 3}, {"device", 3}, {"communication", 3}, {"internal", 3}}) {
    auto run = passing_run();
    auto job = empty_job("train-1", kRanks);
    add_attempt(job.ranks[0], 0, 1, 1, 3, 4, false);
    add_failure(job, 1, 0, 0, "forward", 4, kind, "loss is nan");
    run.jobs["train-1"] = job;
    run.jobs.erase("twin-1");
    const auto results = evaluate_run(run);
    EXPECT_EQ(verdict_of(results).exit_code, exit_code) << kind << "\n" << summary(results);
    EXPECT_THAT(result_of(results, "train.job")->reason, HasSubstr("phase forward of step 4")) << kind;
  }
}

TEST(FailureEvaluation, ALostConnectionIsNotTheCauseWhereARankSaysWhatHappened) {
  auto run = passing_run();
  auto job = empty_job("train-1", kRanks);
  job.ranks[1].push_back(
      event("error", 1, 5, 1, {{"error", "numeric"}, {"message", "loss is nan"}, {"phase", "forward"}}));
  add_failure(job, 1, 0, 0, "update", 5, "communication", "peer closed");
  run.jobs["train-1"] = job;
  run.jobs.erase("twin-1");
  const auto result = result_of(evaluate_run(run), "train.job");
  EXPECT_EQ(result->status, Status::fail);
  EXPECT_THAT(result->ranks, ElementsAre(1));
  EXPECT_THAT(result->reason, HasSubstr("loss is nan"));
}

TEST(FailureEvaluation, ALauncherThatDiedLeavesTheStageIncomplete) {
  auto run = passing_run();
  run.jobs["train-1"].launcher.pop_back();
  const auto results = evaluate_run(run);
  EXPECT_EQ(result_of(results, "train.job")->status, Status::incomplete);
  EXPECT_EQ(verdict_of(results).exit_code, 3);
}

/// train-1 as it is when the planned kill was its last attempt.
JobRecord killed_job() {
  auto job = interrupted_job();
  job.launcher.pop_back();
  for (auto& events : job.ranks) std::erase_if(events, [](const Json& event) { return event["attempt"] == 2; });
  return job;
}

TEST(FailureEvaluation, APlannedKillIsNoFaultOfTheMachine) {
  auto run = passing_run();
  run.jobs["train-1"] = killed_job();
  const auto result = result_of(evaluate_run(run), "train.job");
  EXPECT_EQ(result->status, Status::incomplete);
  EXPECT_EQ(result->action, Action::none);
  EXPECT_THAT(result->reason, testing::AllOf(HasSubstr("rank 1 was killed on purpose"), HasSubstr("interrupted"),
                                             testing::Not(HasSubstr("memory"))));
  EXPECT_TRUE(run.job("train-1").ended_by_planned_kill(1));
}

TEST(FailureEvaluation, AnErrorBesideThePlannedKillIsNotCoveredByIt) {
  auto run = passing_run();
  auto job = killed_job();
  job.launcher.push_back(
      event("error", -1, 6, 1, {{"failed_rank", 0}, {"error", "communication"}, {"sentence", "connection lost"}}));
  EXPECT_TRUE(job.ended_by_planned_kill(1)) << "a lost connection is what a kill brings about";
  job.launcher.push_back(
      event("error", -1, 6, 1, {{"failed_rank", 0}, {"error", "numeric"}, {"sentence", "rank 0: loss is nan"}}));
  EXPECT_FALSE(job.ended_by_planned_kill(1));
  run.jobs["train-1"] = job;
  const auto result = result_of(evaluate_run(run), "train.job");
  EXPECT_EQ(result->status, Status::fail);
  EXPECT_THAT(result->ranks, ElementsAre(0));
  EXPECT_THAT(result->reason, HasSubstr("loss is nan"));
}

TEST(FailureEvaluation, ASignalAfterTheLastStepLeavesTheJobDone) {
  auto run = passing_run();
  run.jobs["twin-1"].launcher.back()["interrupted_by"] = 15;  // and exit code 0: every rank had ended well
  EXPECT_TRUE(run.job("twin-1").done());
  EXPECT_EQ(verdict_of(evaluate_run(run)).exit_code, 0);
}

TEST(FailureEvaluation, SingleTellsTheWholeTimeOfAPhase) {
  auto run = passing_run();
  run.jobs["single-1"].ranks[0].push_back(
      event("phase", 0, 2, 1, {{"phase", "forward"}, {"seconds", 0.75}, {"peak_allocated_bytes", 950}}));
  EXPECT_EQ(result_of(evaluate_stage("single", run), "single.forward")->seconds, 0.75);
}

TEST(FailureEvaluation, SingleSaysWhatAFailedPhaseMeans) {
  struct Row {
    const char* phase;
    const char* kind;
    const char* message;
    const char* words;
  };
  for (const auto& row :
       std::vector<Row>{{"load", "memory", "out of memory", "weight dtype, the quantization and the load settings"},
                        {"backward", "memory", "out of memory", "activations or training states exceed the memory"},
                        {"forward", "internal", "\"addmm\" not implemented for 'Half'", "Operator error"},
                        {"save", "io", "no space left", "free space and permissions"},
                        {"forward", "numeric", "loss is nan", "not finite"}}) {
    auto run = passing_run();
    auto job = empty_job("single-1", 1);
    job.ranks[0].push_back(event("run", 0, 0, 1));
    if (std::string(row.phase) != "load") {
      job.ranks[0].push_back(
          event("phase", 0, 0, 1, {{"phase", "load"}, {"seconds", 1}, {"peak_allocated_bytes", 900}}));
    }
    add_failure(job, 1, 0, 0, row.phase, 1, row.kind, row.message);
    run.jobs["single-1"] = job;
    const auto results = evaluate_stage("single", run);
    const auto result = result_of(results, std::string("single.") + row.phase);
    ASSERT_TRUE(result) << row.phase;
    EXPECT_THAT(result->reason, HasSubstr(row.words)) << row.phase;
    EXPECT_NE(result->status, Status::pass);
    if (std::string(row.phase) == "backward") {
      EXPECT_EQ(result_of(results, "single.load")->status, Status::pass);
      EXPECT_EQ(result_of(results, "single.load")->measured, 900);
      EXPECT_EQ(result_of(results, "single.save")->status, Status::skip);
    }
  }
}

TEST(FailureEvaluation, SingleListsWhatDiffersFromTheTarget) {
  auto run = passing_run();
  run.jobs["single-1"].job["changes"] = {"parallel.nproc_per_node: 2 and 1", "train.max_steps: 10 and 2"};
  run.jobs["single-1"].job["reduced_model"] = "model.config reduces the model from 9 to 4 parameters";
  const auto result = result_of(evaluate_stage("single", run), "single.differences");
  EXPECT_EQ(result->measured, 2);
  EXPECT_THAT(result->reason, testing::AllOf(HasSubstr("train.max_steps: 10 and 2"), HasSubstr("from 9 to 4"),
                                             HasSubstr("a reduced model is not acceptance evidence")));
}

TEST(FailureEvaluation, AccumulationOfOneMicroStepHasNoPhaseOfItsOwn) {
  auto run = passing_run();
  run.recipe.train.gradient_accumulation_steps = 1;
  auto& events = run.jobs["single-1"].ranks[0];
  std::erase_if(events, [](const Json& e) { return e["kind"] == "phase" && e["phase"] == "accumulate"; });
  for_events(run.jobs["single-1"], "memory", [](Json& e) { e["by_phase"].erase("accumulate"); });
  EXPECT_EQ(result_of(evaluate_stage("single", run), "single.accumulate")->status, Status::skip);
}

}  // namespace
}  // namespace assay
