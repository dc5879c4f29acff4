#include "harness/launch/launch_command.h"

#include <gmock/gmock.h>

#include <thread>

#include "harness/core/error.h"
#include "harness/core/json.h"
#include "tests/launch/launch_support.h"

namespace assay::test {
namespace {

using testing::HasSubstr;

std::string refusal_of(const std::vector<std::string>& arguments) {
  try {
    parse_launch_command(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "accepted";
}

TEST(LaunchCommandLine, TorchrunsDefaultsHold) {
  const auto spec = parse_launch_command({"--", "program", "--nproc-per-node", "--", "7"}).spec;
  EXPECT_EQ(spec.nproc, 1);
  EXPECT_EQ(spec.master_addr, "127.0.0.1");
  EXPECT_EQ(spec.master_port, 29500);
  EXPECT_EQ(spec.max_restarts, 0);
  EXPECT_EQ(spec.monitor_interval_seconds, 0.1);
  EXPECT_EQ(spec.grace_seconds, 30);
  EXPECT_EQ(spec.program, (std::vector<std::string>{"program", "--nproc-per-node", "--", "7"}));
}

TEST(LaunchCommandLine, OptionsAreRead) {
  const auto command = parse_launch_command({"--nproc_per_node=4",
                                             "--nnodes",
                                             "1",
                                             "--master_addr",
                                             "10.1.2.3",
                                             "--master-port=1234",
                                             "--max-restarts",
                                             "2",
                                             "--monitor_interval",
                                             "0.5",
                                             "--log-dir",
                                             "my logs",
                                             "-r",
                                             "3",
                                             "--tee=1",
                                             "--no-python",
                                             "--rdzv-id",
                                             "x",
                                             "--role",
                                             "trainer",
                                             "--",
                                             "p"});
  EXPECT_EQ(command.spec.nproc, 4);
  EXPECT_EQ(command.spec.master_addr, "10.1.2.3");
  EXPECT_EQ(command.spec.master_port, 1234);
  EXPECT_EQ(command.spec.max_restarts, 2);
  EXPECT_EQ(command.spec.monitor_interval_seconds, 0.5);
  EXPECT_EQ(command.log_dir, "my logs");
  EXPECT_EQ(command.spec.hidden_streams, 2) << "stdout is in the file and, by tee, on the terminal";
  EXPECT_EQ(command.spec.run_id, "x");
  EXPECT_EQ(command.spec.role, "trainer");
  const auto endpoint = parse_launch_command({"--rdzv-endpoint", "here:77", "--", "p"}).spec;
  EXPECT_EQ(endpoint.master_addr, "here");
  EXPECT_EQ(endpoint.master_port, 77);
  EXPECT_EQ(parse_launch_command({"--standalone", "--", "p"}).spec.master_port, 0);
  EXPECT_EQ(parse_launch_command({"--nproc-per-node", "cpu", "--", "p"}).spec.nproc,
            static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(LaunchCommandLine, PetVariablesAreDefaults) {
  ::setenv("PET_NPROC_PER_NODE", "3", 1);
  const int from_variable = parse_launch_command({"--", "p"}).spec.nproc;
  const int from_option = parse_launch_command({"--nproc-per-node", "2", "--", "p"}).spec.nproc;
  ::unsetenv("PET_NPROC_PER_NODE");
  EXPECT_EQ(from_variable, 3);
  EXPECT_EQ(from_option, 2);
}

TEST(LaunchCommandLine, MistakesAreNamed) {
  EXPECT_THAT(refusal_of({"--nproc-per-node", "0", "--", "p"}), HasSubstr("--nproc-per-node 0"));
  EXPECT_THAT(refusal_of({"--nproc-per-node", "2x", "--", "p"}), HasSubstr("2x"));
  EXPECT_THAT(refusal_of({"--nnodes", "2", "--", "p"}), HasSubstr("not built yet"));
  EXPECT_THAT(refusal_of({"--node-rank", "1", "--", "p"}), HasSubstr("--node-rank 1"));
  EXPECT_THAT(refusal_of({"--master-port", "70000", "--", "p"}), HasSubstr("70000"));
  EXPECT_THAT(refusal_of({"--redirects", "4", "--", "p"}), HasSubstr("--redirects 4"));
  EXPECT_THAT(refusal_of({"--monitor-interval", "0", "--", "p"}), HasSubstr("--monitor-interval 0"));
  EXPECT_THAT(refusal_of({"--nproc", "2", "--", "p"}), HasSubstr("nproc"));
  EXPECT_THAT(refusal_of({"program", "argument"}), HasSubstr("--"));
  EXPECT_THAT(refusal_of({"--standalone"}), HasSubstr("no program"));
  EXPECT_THAT(refusal_of({"--standalone", "--"}), HasSubstr("no program"));
}

class LaunchCommandTest : public LaunchTest {
 protected:
  /// The only folder below the log folder: <run id>_xxxxxx.
  std::filesystem::path run_folder() const { return std::filesystem::directory_iterator(folder.path / "logs")->path(); }
};

TEST_F(LaunchCommandTest, TheFailureBlockNamesTheRootCause) {
  auto launcher = start_launcher({"--nproc-per-node", "2"},
                                 {kRankProgram, "say", "hello", "@1", "raise", "9", "@0", "sleep", "20"});
  EXPECT_EQ(end_of(launcher).code, 137);
  const std::string text = terminal("err");
  EXPECT_THAT(text, HasSubstr(kRankProgram + " FAILED\n"));
  EXPECT_THAT(text, HasSubstr("Root Cause (first observed failure):\n[0]:\n  time      : "));
  EXPECT_THAT(text, HasSubstr("  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: "));
  EXPECT_THAT(text, HasSubstr("Signal 9 (SIGKILL) received by PID "));
  EXPECT_THAT(terminal("out"), HasSubstr("[rank 1] hello\n"));
  EXPECT_EQ(read_text_file(run_folder() / "attempt_0/1/stdout.log"), "hello\n");
}

TEST_F(LaunchCommandTest, ErrorJsonIsWrittenForALauncherAbove) {
  const auto path = folder.path / "error.json";
  launcher_environment["TORCHELASTIC_ERROR_FILE"] = path.string();
  auto launcher = start_launcher({}, {kRankProgram, "complain", "what went wrong", "exit", "9"});
  EXPECT_EQ(end_of(launcher).code, 9);
  const auto document = parse_json(read_text_file(path), "error.json");
  EXPECT_THAT(document["message"]["message"].get<std::string>(), HasSubstr("what went wrong"));
  EXPECT_EQ(document["message"]["errorCode"], 9);
  EXPECT_TRUE(document["message"]["extraInfo"].contains("timestamp"));
}

TEST_F(LaunchCommandTest, TheWholeGroupRestartsExactlySoManyTimes) {
  auto launcher = start_launcher({"--nproc-per-node", "2", "--max-restarts", "2"},
                                 {kRankProgram, "environment", "@1", "exit", "6", "@0", "sleep", "20"});
  EXPECT_EQ(end_of(launcher).code, 6);
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::string count = "TORCHELASTIC_RESTART_COUNT=" + std::to_string(attempt) + "\n";
    for (const char* rank : {"0", "1"}) {
      EXPECT_THAT(read_text_file(run_folder() / ("attempt_" + std::to_string(attempt)) / rank / "stdout.log"),
                  HasSubstr(count));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(run_folder() / "attempt_3"));
}

TEST_F(LaunchCommandTest, AProgramThatCannotStartIsNotStartedAgain) {
  auto launcher = start_launcher({"--max-restarts", "5"}, {"no such program"});
  EXPECT_EQ(end_of(launcher).code, 127);
  EXPECT_FALSE(std::filesystem::exists(run_folder() / "attempt_1"));
}

TEST_F(LaunchCommandTest, RedirectsKeepAStreamOffTheTerminal) {
  auto launcher = start_launcher({"--redirects", "1"}, {kRankProgram, "say", "quiet", "complain", "loud"});
  EXPECT_EQ(end_of(launcher).code, 0);
  EXPECT_EQ(terminal("out"), "");
  EXPECT_THAT(terminal("err"), HasSubstr("[rank 0] loud\n"));
  EXPECT_EQ(read_text_file(run_folder() / "attempt_0/0/stdout.log"), "quiet\n");
}

TEST_F(LaunchCommandTest, ALauncherInsideALauncherHasItsOwnWorld) {
  launcher_environment = {{"RANK", "5"},
                          {"WORLD_SIZE", "6"},
                          {"LOCAL_RANK", "5"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"ASSAY_LISTEN_FD", "9"}};
  auto launcher = start_launcher({}, {kRankProgram, "environment"});
  EXPECT_EQ(end_of(launcher).code, 0);
  const auto text = terminal("out");
  EXPECT_THAT(text, HasSubstr("[rank 0] RANK=0\n"));
  EXPECT_THAT(text, HasSubstr("[rank 0] WORLD_SIZE=1\n"));
  EXPECT_THAT(text, HasSubstr("[rank 0] TORCHELASTIC_USE_AGENT_STORE=False\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("ASSAY_LISTEN_FD")));
}

}  // namespace
}  // namespace assay::test
