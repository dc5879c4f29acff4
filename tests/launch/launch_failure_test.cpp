// Which failure is named, how fast, and that the others end.
#include <gmock/gmock.h>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "tests/launch/launch_support.h"

namespace assay::test {
namespace {

using testing::HasSubstr;

/// Pids of all ranks, noted while they run.
void note_pids(LaunchSpec& spec, std::vector<int>& pids) {
  spec.on_tick = [&pids](const LaunchView& view) {
    pids.clear();
    for (const auto& rank : view.ranks) pids.push_back(rank.pid);
  };
}

TEST_F(LaunchTest, AKilledRankIsNamedWithItsPhaseAndStep) {
  auto spec = spec_of({"beat", "7", "2", "@1", "raise", "9", "@0", "sleep", "20"}, 3);
  std::vector<int> pids;
  note_pids(spec, pids);
  const auto result = launch(spec);
  EXPECT_LT(result.seconds, 3);
  EXPECT_EQ(result.exit_code, 128 + 9);
  ASSERT_TRUE(result.root_cause);
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.root_cause->signal, 9);
  EXPECT_FALSE(result.root_cause->exit_code);
  EXPECT_EQ(result.root_cause->reason, "killed");
  EXPECT_EQ(result.root_cause->phase, "backward");
  EXPECT_EQ(result.root_cause->step, 7);
  EXPECT_EQ(result.root_cause->pid, pids.at(1));
  EXPECT_EQ(result.failures.size(), 1U) << "a rank that the launcher ended is no failure";
  EXPECT_FALSE(result.interrupted_by);
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
  EXPECT_THAT(describe(*result.root_cause), HasSubstr("killed by signal 9 (SIGKILL) in phase backward of step 7"));
}

TEST_F(LaunchTest, ExitCodesAreKept) {
  for (const int code : {1, 3, 77, 255}) {
    const auto result = launch(spec_of({"exit", std::to_string(code)}, 2));
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.failures.size(), 2U) << "both had time to end by themselves";
  }
  EXPECT_EQ(launch(spec_of({"raise", std::to_string(SIGSEGV)}, 1)).exit_code, 128 + SIGSEGV);
  EXPECT_EQ(launch(spec_of({"raise", std::to_string(SIGABRT)}, 1)).exit_code, 128 + SIGABRT);
}

TEST_F(LaunchTest, ARankThatGoesOnNowAndThenIsSlowNotStopped) {
  auto spec = spec_of({"proof", "up", "sleep", "1.5"}, 1);
  spec.monitor_interval_seconds = 0.05;
  spec.stopped_seconds = 0.5;
  int num_stops = 0;
  spec.on_tick = [&](const LaunchView& view) {  // every look finds it stopped
    if (proof("up", 0).empty()) return;
    view.kill(0, SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    view.kill(0, SIGSTOP);
    if (wait_until([&] { return !view.ranks[0].alive || process_facts(view.ranks[0].pid)[0] == 'T'; }, 0.1))
      ++num_stops;
  };
  EXPECT_EQ(launch(spec).exit_code, 0);
  EXPECT_GT(num_stops, 10);
}

TEST_F(LaunchTest, ARankThatIgnoresTheRequestIsKilledAfterTheGrace) {
  auto spec = spec_of({"ignore-term", "grandchild", "@0", "exit", "5", "@1", "sleep", "20"}, 2);
  spec.settle_seconds = 0.1;
  spec.grace_seconds = 0.5;
  std::vector<int> pids;
  note_pids(spec, pids);
  const auto result = launch(spec);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_GE(result.seconds, 0.6);
  EXPECT_LT(result.seconds, 5);
  EXPECT_FALSE(is_alive(pids.at(1)));
  EXPECT_TRUE(wait_until([&] { return !is_alive(pid_of_proof("grandchild", 1)); }, 2));
}

TEST_F(LaunchTest, ACommunicationErrorIsNotTheRootCauseWhileAnotherFailureExists) {
  const auto job = (folder.path / "job").string();
  // Rank 0 sees the lost connection first; rank 1, whose fault it is, takes longer to die.
  const auto result = launch(spec_of({"@0", "error-event", "communication", job, "exit", "3", "@1", "sleep", "0.3",
                                      "complain", "bad allocation", "exit", "4"},
                                     2));
  ASSERT_EQ(result.failures.size(), 2U);
  EXPECT_EQ(result.failures[0].rank, 0);
  EXPECT_EQ(result.failures[0].error_kind, "communication");
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.root_cause->message, "bad allocation");
  EXPECT_EQ(result.exit_code, 4);
}

TEST_F(LaunchTest, ARankThatWroteToALostOneIsNotTheRootCause) {
  const auto result = launch(spec_of({"@0", "raise", std::to_string(SIGPIPE), "@1", "sleep", "0.3", "raise", "9"}, 2));
  ASSERT_EQ(result.failures.size(), 2U);
  EXPECT_EQ(result.failures[0].signal, SIGPIPE);
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.exit_code, 128 + 9);
}

TEST_F(LaunchTest, ACommunicationErrorAloneIsTheRootCause) {
  const auto job = (folder.path / "job").string();
  const auto result = launch(spec_of({"@0", "error-event", "communication", job, "exit", "3"}, 2));
  ASSERT_TRUE(result.root_cause);
  EXPECT_EQ(result.root_cause->rank, 0);
  EXPECT_EQ(result.exit_code, 3);
}

TEST_F(LaunchTest, TheMessageIsTheRanksOwn) {
  const auto job = (folder.path / "job").string();
  const auto event = launch(spec_of({"error-event", "numeric", job, "complain", "noise", "exit", "1"}, 1));
  EXPECT_EQ(event.root_cause->message, "own words");
  EXPECT_EQ(event.root_cause->error_kind, "numeric");
  EXPECT_EQ(event.root_cause->phase, "backward");
  auto later = spec_of({"error-file", "complain", "noise", "exit", "1"}, 1);
  later.attempt = 2;  // the event of attempt 1 is in the same file
  EXPECT_EQ(launch(later).root_cause->message, "said in error.json");
  later.attempt = 3;  // and error.json of attempt 2 is gone
  later.program = {kRankProgram, "complain", "last but one", "complain", "last", "exit", "1"};
  EXPECT_EQ(launch(later).root_cause->message, "last but one\nlast");
}

TEST_F(LaunchTest, AStoppedRankIsFound) {
  auto spec = spec_of({"beat", "2", "1", "@1", "stop-itself", "@0", "sleep", "20"}, 2);
  spec.stopped_seconds = 0.5;
  spec.stall_seconds = 0.2;  // rank 0 makes no progress either, but that is not its fault
  spec.settle_seconds = 0.1;
  std::vector<int> pids;
  note_pids(spec, pids);
  const auto result = launch(spec);
  ASSERT_TRUE(result.root_cause);
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.failures.size(), 1U);
  EXPECT_EQ(result.root_cause->reason, "stopped");
  EXPECT_EQ(result.root_cause->phase, "forward");
  EXPECT_EQ(result.exit_code, exit_incomplete);
  EXPECT_LT(result.seconds, 3);
  for (const int pid : pids) EXPECT_FALSE(is_alive(pid));
}

// The other notices first that nothing comes, and the stopped one does not hear that it shall end.
TEST_F(LaunchTest, AStoppedRankIsTheRootCauseOfALostConnection) {
  const auto job = (folder.path / "job").string();
  auto spec = spec_of({"@1", "stop-itself", "@0", "sleep", "0.1", "error-event", "communication", job, "exit", "3"}, 2);
  spec.stopped_seconds = 0.8;
  spec.settle_seconds = 0.1;
  const auto result = launch(spec);
  ASSERT_EQ(result.failures.size(), 2U);
  EXPECT_EQ(result.failures[0].error_kind, "communication");
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.root_cause->reason, "stopped");
  EXPECT_LT(result.seconds, 5);
}

TEST_F(LaunchTest, ShortPausesAreNoFailure) {
  auto spec = spec_of({"sleep", "1.2"}, 1);
  spec.stopped_seconds = 0.5;
  spec.monitor_interval_seconds = 0.05;
  int tick = 0;
  spec.on_tick = [&](const LaunchView& view) { view.kill(0, ++tick % 6 < 3 ? SIGSTOP : SIGCONT); };
  EXPECT_EQ(launch(spec).exit_code, 0);
}

TEST_F(LaunchTest, ARankWithoutProgressIsFound) {
  // Rank 1 hangs in step 3; rank 0 beats once more and waits for it in step 4.
  auto spec = spec_of({"beat", "3", "1", "@0", "beat", "4", "1", "@", "sleep", "20"}, 2);
  spec.stall_seconds = 0.5;
  spec.settle_seconds = 0.3;
  const auto result = launch(spec);
  ASSERT_TRUE(result.root_cause);
  EXPECT_EQ(result.root_cause->reason, "stalled");
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.root_cause->step, 3);
  EXPECT_LT(result.seconds, 3);
}

TEST_F(LaunchTest, ARankThatNeverBeatsIsNotJudgedByItsHeart) {
  auto spec = spec_of({"sleep", "0.5"}, 1);
  spec.stall_seconds = 0.2;
  EXPECT_EQ(launch(spec).exit_code, 0);
}

TEST_F(LaunchTest, TheLauncherWritesEvents) {
  launch(spec_of({"beat", "7", "2", "@1", "raise", "9"}, 2));
  const auto events = read_events(folder.path / "job/events/launcher.jsonl");
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0]["kind"], "run");
  EXPECT_EQ(events[0]["rank"], -1);
  EXPECT_EQ(events[0]["world_size"], 2);
  EXPECT_EQ(events[1]["kind"], "error");
  EXPECT_EQ(events[1]["rank"], -1);
  EXPECT_EQ(events[1]["failed_rank"], 1);
  EXPECT_EQ(events[1]["signal"], 9);
  EXPECT_EQ(events[1]["step"], 7);
  EXPECT_EQ(events[2]["kind"], "end");
  EXPECT_EQ(events[2]["exit_code"], 137);
  EXPECT_EQ(events[2]["root_cause"]["rank"], 1);
  EXPECT_THAT(events[2]["root_cause"]["sentence"].get<std::string>(), HasSubstr("phase backward of step 7"));
}

TEST_F(LaunchTest, AProgramThatCannotStartIsAFailureWithAReason) {
  auto spec = spec_of({}, 2);
  spec.program = {(folder.path / "missing program").string()};
  const auto missing = launch(spec);
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_THAT(missing.root_cause->message, HasSubstr("missing program: No such file"));
  spec.program = {folder.path.string()};
  EXPECT_EQ(launch(spec).exit_code, 126);
}

TEST(RootCause, StalledRanksAreJudgedByTheirStep) {
  RankFailure first;
  first.reason = "stalled";
  first.step = 5;
  RankFailure behind = first;
  behind.rank = 2;
  behind.step = 4;
  RankFailure lost;
  lost.rank = 1;
  lost.reason = "exited";
  lost.error_kind = "communication";
  EXPECT_EQ(find_root_cause({lost, first, behind}).rank, 2);
  EXPECT_EQ(find_root_cause({lost}).rank, 1);
}

}  // namespace
}  // namespace assay::test
