// Signals to the launcher, which is a process of its own here; and its death.
#include <gmock/gmock.h>
#include <signal.h>

#include "tests/launch/launch_support.h"

namespace assay::test {
namespace {

class LaunchSignalTest : public LaunchTest {
 protected:
  /// Waits until both ranks run the behaviour.
  bool ranks_are_up(const std::string& name) {
    return wait_until([&] { return pid_of_proof(name, 0) > 0 && pid_of_proof(name, 1) > 0; }, 10);
  }

  void expect_nobody(const std::string& name) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(wait_until([&] { return !is_alive(pid_of_proof(name, rank)); }, 2)) << name << " of rank " << rank;
    }
  }
};

TEST_F(LaunchSignalTest, SignalsLetTheRanksSave) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const char* name : {"ready-", "saved-"})
        std::filesystem::remove(folder.path / (name + std::to_string(rank)));
    }
    auto launcher = start_launcher({"--nproc-per-node", "2"}, {kRankProgram, "save-on-term"});
    ASSERT_TRUE(ranks_are_up("ready"));
    ::kill(launcher.pid(), signal);
    EXPECT_EQ(end_of(launcher).code, 128 + signal);
    EXPECT_EQ(proof("saved", 0), "yes");
    EXPECT_EQ(proof("saved", 1), "yes");
    expect_nobody("ready");
  }
}

TEST_F(LaunchSignalTest, ASecondSignalKills) {
  auto launcher = start_launcher({"--nproc-per-node", "2"},
                                 {kRankProgram, "ignore-term", "grandchild", "proof", "up", "sleep", "60"});
  ASSERT_TRUE(ranks_are_up("up"));
  ::kill(launcher.pid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(is_alive(pid_of_proof("up", 0))) << "it has a grace of 30 s";
  ::kill(launcher.pid(), SIGTERM);
  EXPECT_EQ(end_of(launcher).code, 128 + SIGTERM);
  expect_nobody("up");
  expect_nobody("grandchild");
}

TEST_F(LaunchSignalTest, TheGraceEnds) {
  launcher_environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "0.5";
  auto launcher =
      start_launcher({"--nproc-per-node", "2"}, {kRankProgram, "ignore-term", "proof", "up", "sleep", "60"});
  ASSERT_TRUE(ranks_are_up("up"));
  ::kill(launcher.pid(), SIGINT);
  EXPECT_EQ(end_of(launcher).code, 128 + SIGINT);
  expect_nobody("up");
}

TEST_F(LaunchSignalTest, AKilledLauncherLeavesNoRank) {
  auto launcher =
      start_launcher({"--nproc-per-node", "2"}, {kRankProgram, "ignore-term", "proof", "up", "sleep", "60"});
  ASSERT_TRUE(ranks_are_up("up"));
  EXPECT_TRUE(is_alive(pid_of_proof("up", 0)) && is_alive(pid_of_proof("up", 1)));
  ::kill(launcher.pid(), SIGKILL);
  EXPECT_EQ(end_of(launcher).signal, SIGKILL);
  expect_nobody("up");
}

TEST_F(LaunchTest, ASignalDoesNotUndoWhatAllRanksDidToTheEnd) {
  auto spec = spec_of({"save-on-term"}, 2);
  bool sent = false;
  spec.on_tick = [&](const LaunchView&) {
    if (sent || proof("ready", 0).empty() || proof("ready", 1).empty()) return;
    sent = true;
    ::kill(::getpid(), SIGTERM);
  };
  const auto result = launch(spec);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.interrupted_by, SIGTERM);
}

TEST_F(LaunchTest, ASignalAfterAFailureIsKeptBesideIt) {
  auto spec = spec_of({"@0", "exit", "5", "@1", "sleep", "20"}, 2);
  spec.settle_seconds = 10;
  bool sent = false;
  spec.on_tick = [&](const LaunchView& view) {
    if (sent || view.ranks[0].alive) return;
    sent = true;
    ::kill(::getpid(), SIGINT);
  };
  const auto result = launch(spec);
  EXPECT_EQ(result.exit_code, 5);
  ASSERT_TRUE(result.root_cause);
  EXPECT_EQ(result.root_cause->rank, 0);
  EXPECT_EQ(result.interrupted_by, SIGINT);
  EXPECT_LT(result.seconds, 5) << "the signal ends the others at once";
}

TEST_F(LaunchSignalTest, AStoppedLauncherBlamesNobody) {
  // Launcher and ranks are stopped together, as by a suspended machine, for longer than a rank may be.
  auto launcher = start_launcher({"--nproc-per-node", "2"}, {kRankProgram, "proof", "up", "sleep", "2"});
  ASSERT_TRUE(ranks_are_up("up"));
  const std::vector<int> pids{launcher.pid(), pid_of_proof("up", 0), pid_of_proof("up", 1)};
  for (const int pid : pids) ::kill(pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  for (const int pid : pids) ::kill(pid, SIGCONT);
  EXPECT_EQ(end_of(launcher).code, 0);
}

}  // namespace
}  // namespace assay::test
