// Ranks and launchers that are killed, stopped or slowed from outside: named, judged, and nobody left.
#include <gmock/gmock.h>

#include <optional>

#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Failure : public EndToEnd {
 protected:
  std::map<std::string, Json> results() const {
    std::map<std::string, Json> found;
    for (const auto& line : split_lines(read_text_file(run("run") / "results.jsonl"))) {
      auto result = parse_json(line, "results.jsonl");
      found[result.at("check").get<std::string>()] = result;
    }
    return found;
  }
  std::string verdict() const { return parse_json(read_text_file(run("run") / "report.json"), "report")["verdict"]; }

  /// The process of a rank once it has recorded this step, or nothing if the program ends before.
  std::optional<int> rank_at_step(BackgroundProgram& program, const std::string& of_job, int rank, int step) const {
    if (!wait_for_step(program, job("run", of_job), rank, step)) return std::nullopt;
    return last_event(job("run", of_job), rank, "run")["pid"].get<int>();
  }
};

/// SigIgn in /proc: does the process ignore this signal?
bool ignores(int pid, int signal) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("SigIgn:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) == 1;
  }
  return false;
}

struct Victim {
  const char* job;
  const char* check;  ///< the result that must name it
  int rank;
};

void PrintTo(const Victim& victim, std::ostream* stream) { *stream << "rank " << victim.rank << " of " << victim.job; }

class KilledRank : public Failure, public testing::WithParamInterface<Victim> {};
INSTANTIATE_TEST_SUITE_P(Jobs, KilledRank,
                         testing::Values(Victim{"train-1", "train.job", 0}, Victim{"twin-1", "train.twin", 1}),
                         [](const auto& victim) { return victim.index == 0 ? "Main" : "Twin"; });

TEST_P(KilledRank, MakesTheAcceptanceIncompleteAndIsNamed) {
  const auto victim = GetParam();
  BackgroundProgram acceptance(program("assay"), command("accept", "run"));
  const auto pid = rank_at_step(acceptance, victim.job, victim.rank, 3);
  ASSERT_TRUE(pid) << acceptance.err();
  EXPECT_TRUE(ignores(*pid, SIGPIPE)) << "it would die of the other's death";
  ::kill(*pid, SIGKILL);
  const auto result = acceptance.finish(kLongest);
  EXPECT_EQ(result.exit_code, 3) << result.out;
  EXPECT_EQ(verdict(), "incomplete");
  const auto named = results().at(victim.check);
  EXPECT_EQ(named["status"], "incomplete");
  EXPECT_THAT(named["ranks"], ElementsAre(victim.rank));
  EXPECT_THAT(named["reason"].get<std::string>(),
              AllOf(HasSubstr("rank " + std::to_string(victim.rank) + " on "),
                    HasSubstr("killed by signal 9 (SIGKILL)"), HasSubstr(" in phase "), HasSubstr(" of step ")));
  EXPECT_THAT(result.out, HasSubstr(named["reason"].get<std::string>()));
}

// The launcher notices after stopped_seconds (5) and gives the others settle_seconds (1) to end by themselves.
TEST_F(Failure, AStoppedRankMakesTheAcceptanceIncompleteWithinSeconds) {
  BackgroundProgram acceptance(program("assay"), command("accept", "run"));
  const auto pid = rank_at_step(acceptance, "train-1", 1, 3);
  ASSERT_TRUE(pid) << acceptance.err();
  const auto stopped_at = std::chrono::steady_clock::now();
  ::kill(*pid, SIGSTOP);
  const auto result = acceptance.finish(kLongest);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - stopped_at;
  EXPECT_GT(taken.count(), 4.5) << "a short stop is no failure";
  EXPECT_LT(taken.count(), 20);
  EXPECT_EQ(result.exit_code, 3) << result.out;
  EXPECT_EQ(verdict(), "incomplete");
  const auto named = results().at("train.job");
  EXPECT_THAT(named["ranks"], ElementsAre(1));
  EXPECT_THAT(
      named["reason"].get<std::string>(),
      AllOf(HasSubstr("rank 1 on "), HasSubstr("is stopped and does not go on in phase "), HasSubstr(" of step ")));
}

struct Loss {
  const char* name;
  int signal;
  const char* strategy;
  const char* reason;
  const char* words;
};

void PrintTo(const Loss& loss, std::ostream* stream) { *stream << loss.name; }

class LostRank : public Failure, public testing::WithParamInterface<Loss> {};
INSTANTIATE_TEST_SUITE_P(Signals, LostRank,
                         testing::Values(Loss{"Killed", SIGKILL, "fsdp", "killed", "was killed by signal 9 (SIGKILL)"},
                                         Loss{"Crashed", SIGSEGV, "ddp", "killed", "was killed by signal 11 (SIGSEGV)"},
                                         Loss{"Stopped", SIGSTOP, "fsdp", "stopped", "is stopped and does not go on"}),
                         [](const auto& loss) { return std::string(loss.param.name); });

// The others are in the middle of collectives with it. With SIGSTOP their time-out comes before the launcher's
// judgement.
TEST_P(LostRank, EndsAllWithinTheTimeOutAndIsNamed) {
  constexpr double kTimeout = 3;
  constexpr int kLost = 1;
  BackgroundProgram training(
      program("assay"), command("train", "run",
                                {"train.max_steps=10000", "parallel.nproc_per_node=3", "parallel.timeout_seconds=3",
                                 std::string("parallel.strategy=") + GetParam().strategy}));
  const auto pid = rank_at_step(training, "train-1", kLost, 3);
  ASSERT_TRUE(pid) << training.err();
  const auto lost_at = std::chrono::steady_clock::now();
  ::kill(*pid, GetParam().signal);
  const auto result = training.finish(kLongest);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - lost_at;
  EXPECT_LT(taken.count(), kTimeout + 5);
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const auto cause = last_event(job("run"), -1, "end")["root_cause"];
  EXPECT_EQ(cause["rank"], kLost);
  EXPECT_EQ(cause["reason"], GetParam().reason);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 on "), HasSubstr(GetParam().words)));
}

TEST_F(Failure, ASlowedRankIsNamedByTheUtilization) {
  constexpr int kSlowed = 0;
  BackgroundProgram acceptance(
      program("assay"),
      command("accept", "run", {"train.max_steps=10", "checkpoint.interval=5", "data.sequence_length=128"}));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kLongest);
  while (acceptance.running() && std::chrono::steady_clock::now() < end) {
    int pid = 0;
    for (const char* name : {"twin-1", "train-1"}) {
      const auto last = last_event(job("run", name), kSlowed, "run");
      if (pid == 0 && !last.is_null() && is_alive(last["pid"].get<int>())) pid = last["pid"].get<int>();
    }
    if (pid != 0) {
      ::kill(pid, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(76));
      ::kill(pid, SIGCONT);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
  }
  const auto result = acceptance.finish(1);
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_EQ(verdict(), "rejected");
  const auto balance = results().at("utilization.compute_share_of_median");
  EXPECT_EQ(balance["status"], "fail");
  EXPECT_EQ(balance["limit"], 0.5);
  EXPECT_LT(balance["measured"].get<double>(), 0.5);
  EXPECT_THAT(balance["ranks"], ElementsAre(kSlowed));
  for (const auto& [name, check] : results()) {
    EXPECT_TRUE(check["stage"] == "utilization" || check["status"] != "fail") << check;
  }
}

TEST_F(Failure, AKilledLauncherLeavesNoRank) {
  BackgroundProgram training(program("assay"), command("train", "run", {"train.max_steps=10000"}));
  ASSERT_TRUE(rank_at_step(training, "train-1", 1, 3)) << training.err();
  training.send(SIGKILL);
  EXPECT_EQ(training.finish().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(wait_until([] { return living_children().empty(); }, 3)) << living_children().front();
}

}  // namespace
}  // namespace assay
