// One group of ranks that does what it should: contract, input, logs, port, nothing left.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <set>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/launch/rendezvous.h"
#include "tests/launch/launch_support.h"

namespace assay::test {
namespace {

using testing::HasSubstr;

std::map<std::string, std::string> variables_in(const std::string& text) {
  std::map<std::string, std::string> result;
  for (const auto& line : split_lines(text)) result[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  return result;
}

TEST_F(LaunchTest, RanksGetTorchrunsEnvironment) {
  auto spec = spec_of({"environment"}, 3);
  spec.attempt = 2;
  spec.max_restarts = 4;
  spec.run_id = "job 7";
  spec.environment["OWN"] = "kept";
  spec.environment["RANK"] = "99";  // the contract wins
  ASSERT_EQ(launch(spec).exit_code, 0);
  std::string port;
  for (int rank = 0; rank < 3; ++rank) {
    auto got = variables_in(log(rank, "out"));
    const std::string place = std::to_string(rank);
    const std::map<std::string, std::string> expected{
        {"RANK", place},
        {"LOCAL_RANK", place},
        {"ROLE_RANK", place},
        {"WORLD_SIZE", "3"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"ROLE_WORLD_SIZE", "3"},
        {"GROUP_RANK", "0"},
        {"GROUP_WORLD_SIZE", "1"},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"TORCHELASTIC_RESTART_COUNT", "1"},
        {"TORCHELASTIC_MAX_RESTARTS", "4"},
        {"TORCHELASTIC_RUN_ID", "job 7"},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"OWN", "kept"},
        {"OMP_NUM_THREADS", "1"},
        {"ASSAY_HEARTBEAT_FILE", (folder.path / "job/heartbeat" / ("rank_0000" + place)).string()},
        {"TORCHELASTIC_ERROR_FILE", (folder.path / "job/logs" / ("rank_0000" + place + ".error.json")).string()}};
    for (const auto& [name, value] : expected) EXPECT_EQ(got[name], value) << name << " of rank " << rank;
    EXPECT_FALSE(got.contains("ASSAY_LISTEN_FD"));
    if (rank == 0) port = got["MASTER_PORT"];
    EXPECT_EQ(got["MASTER_PORT"], port);
    EXPECT_GT(std::stoi(port), 0);
  }
}

TEST_F(LaunchTest, OneRankKeepsItsThreads) {
  ASSERT_EQ(launch(spec_of({"environment"}, 1)).exit_code, 0);
  EXPECT_EQ(variables_in(log(0, "out")).count("OMP_NUM_THREADS"), ::getenv("OMP_NUM_THREADS") ? 1U : 0U);
}

TEST_F(LaunchTest, EveryRankReadsTheSameInput) {
  auto spec = spec_of({"echo-input"}, 3);
  // More than a pipe holds, so that a launcher that wrote it to one rank after the other would hang.
  for (int i = 0; i < 30000; ++i) spec.standard_input += "job line " + std::to_string(i) + "\n";
  spec.standard_input.push_back('\0');
  ASSERT_EQ(launch(spec).exit_code, 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(log(rank, "out"), spec.standard_input);
}

TEST_F(LaunchTest, ArgumentsAndPathsArriveAsTheyAre) {
  const std::string hard = "a b'c\"d;e$HOME`f\n-*\\ \t";
  const auto odd_folder = folder.path / hard;
  std::filesystem::create_directory(odd_folder);
  std::filesystem::copy_file(kRankProgram, odd_folder / "-program ;");
  auto spec = spec_of({"say", hard}, 2);
  spec.program[0] = (odd_folder / "-program ;").string();
  spec.folder = odd_folder / "job/";
  ASSERT_EQ(launch(spec).exit_code, 0);
  EXPECT_EQ(read_text_file(odd_folder / "job/logs/rank_00001.out"), hard + "\n");
  EXPECT_EQ(read_events(odd_folder / "job/events/launcher.jsonl").front()["job"], "job");
}

TEST_F(LaunchTest, ThePortIsHandedOverAsAnOpenSocket) {
  auto spec = spec_of({"@0", "accept", "@1", "environment", "sleep", "20"}, 2);
  spec.pass_listen_fd = true;
  bool connected = false;
  bool stolen = true;
  spec.on_tick = [&](const LaunchView& view) {
    const auto launcher = read_events(spec.folder / "events/launcher.jsonl");
    const int port = launcher.front()["master_port"].get<int>();
    if (!connected) {
      EXPECT_THROW(listen_on("127.0.0.1", port), Error) << "another process could take the port";
      stolen = false;
      sockaddr_in name{};
      name.sin_family = AF_INET;
      name.sin_port = htons(static_cast<std::uint16_t>(port));
      name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const FileDescriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      connected = ::connect(client.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0;
    }
    if (!view.ranks[0].alive) view.kill(1, SIGKILL);
  };
  launch(spec);
  EXPECT_TRUE(connected);
  EXPECT_FALSE(stolen);
  EXPECT_EQ(proof("accepted", 0), "yes");
  EXPECT_EQ(variables_in(log(1, "out")).count("ASSAY_LISTEN_FD"), 0U);
}

TEST_F(LaunchTest, RanksInheritNothingButTheirStreams) {
  const FileDescriptor leaked(::open("/dev/null", O_RDONLY));  // without close-on-exec
  ASSERT_EQ(launch(spec_of({"descriptors"}, 2)).exit_code, 0);
  EXPECT_EQ(log(1, "out"), "fd 0\nfd 1\nfd 2\n");
}

TEST_F(LaunchTest, LogsOfALaterAttemptAreAdded) {
  auto spec = spec_of({"say", "first"}, 1);
  launch(spec);
  spec.attempt = 2;
  spec.program.back() = "second";
  launch(spec);
  EXPECT_EQ(log(0, "out"), "first\nsecond\n");
}

TEST_F(LaunchTest, LongLogsAreWholeInFilesAndOnTheTerminal) {
  constexpr int kLines = 100000;
  auto launcher =
      start_launcher({"--nproc-per-node", "2"}, {kRankProgram, "lines", std::to_string(kLines), "say-part", "cut"});
  EXPECT_EQ(end_of(launcher).code, 0);
  std::array<int, 2> seen{};
  for (const auto& line : split_lines(terminal("out"))) {
    ASSERT_TRUE(line.starts_with("[rank 0] ") || line.starts_with("[rank 1] ")) << line;
    const int rank = line[6] - '0';
    auto& count = seen[static_cast<std::size_t>(rank)];
    char expected[64];
    std::snprintf(expected, sizeof expected, "[rank %d] line %07d of rank %d ends here", rank, count, rank);
    ASSERT_EQ(line, count < kLines ? expected : "[rank " + std::to_string(rank) + "] cut");
    ++count;
  }
  EXPECT_EQ(seen[0], kLines + 1);
  EXPECT_EQ(seen[1], kLines + 1);
}

/// `assay launch` on two ranks with both streams on one descriptor.
class LaunchTerminalTest : public LaunchTest {
 protected:
  ChildProcess start_launcher_on(int terminal, const std::vector<std::string>& program) {
    std::vector<std::string> command{kRankProgram, "launch", "--standalone", "--nproc-per-node", "2", "--log-dir"};
    command.push_back(folder.path.string());
    command.emplace_back("--");
    command.insert(command.end(), program.begin(), program.end());
    const FileDescriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return ChildProcess({.command = command,
                         .environment = {"PROOF_FOLDER=" + folder.path.string()},
                         .standard_input = input.get(),
                         .standard_output = terminal,
                         .standard_error = terminal,
                         .kept_fd = -1});
  }
};

TEST_F(LaunchTerminalTest, ATerminalThatNobodyReadsBlocksNoRank) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  auto launcher = start_launcher_on(write_end.get(), {kRankProgram, "lines", "20000", "proof", "done"});
  write_end.close();
  EXPECT_TRUE(wait_until([&] { return !proof("done", 0).empty() && !proof("done", 1).empty(); }, 10));
  EXPECT_FALSE(launcher.poll()) << "the launcher still has output to show";
  // Now somebody reads: everything comes.
  std::string text;
  std::array<char, 65536> chunk;
  for (ssize_t count; (count = ::read(read_end.get(), chunk.data(), chunk.size())) > 0;)
    text.append(chunk.data(), count);
  EXPECT_EQ(end_of(launcher).code, 0);
  EXPECT_THAT(text, HasSubstr("[rank 0] line 0019999 of rank 0 ends here\n"));
  EXPECT_THAT(text, HasSubstr("[rank 1] line 0019999 of rank 1 ends here\n"));
}

TEST_F(LaunchTerminalTest, ATerminalThatIsGoneEndsNoRank) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  auto launcher = start_launcher_on(write_end.get(), {kRankProgram, "lines", "20000", "sleep", "0.3", "proof", "done"});
  write_end.close();
  read_end.close();
  EXPECT_EQ(end_of(launcher).code, 0);
  EXPECT_NE(proof("done", 0), "");
  EXPECT_NE(proof("done", 1), "");
}

TEST_F(LaunchTest, WhatARankLeftBehindEndsWithIt) {
  ASSERT_EQ(launch(spec_of({"grandchild"}, 2)).exit_code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    const int grandchild = pid_of_proof("grandchild", rank);
    ASSERT_GT(grandchild, 0);
    EXPECT_TRUE(wait_until([&] { return !is_alive(grandchild); }, 2));
  }
}

int num_open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

TEST_F(LaunchTest, FiftyStartsAndStopsLeaveNothing) {
  auto spec = spec_of({"grandchild", "@1", "exit", "3", "@0", "sleep", "20"}, 2);
  spec.settle_seconds = 0.01;
  spec.pass_listen_fd = true;
  launch(spec);
  const int descriptors = num_open_descriptors();
  for (int cycle = 0; cycle < 50; ++cycle) {
    std::set<int> pids;
    spec.on_tick = [&](const LaunchView& view) {
      for (const auto& rank : view.ranks) pids.insert(rank.pid);
    };
    EXPECT_EQ(launch(spec).exit_code, 3);
    EXPECT_EQ(pids.size(), 2U);
    for (const int pid : pids) EXPECT_NE(::kill(pid, 0), 0) << "not reaped";
  }
  EXPECT_EQ(num_open_descriptors(), descriptors);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child or zombie is left";
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(LaunchTest, AnErrorInOnTickEndsTheRanks) {
  auto spec = spec_of({"ignore-term", "sleep", "20"}, 2);
  std::vector<int> pids;
  spec.on_tick = [&](const LaunchView& view) {
    for (const auto& rank : view.ranks) pids.push_back(rank.pid);
    throw Error(ErrorKind::io, "no more");
  };
  EXPECT_THROW(launch(spec), Error);
  ASSERT_EQ(pids.size(), 2U);
  for (const int pid : pids) EXPECT_NE(::kill(pid, 0), 0);
}

TEST_F(LaunchTest, TheViewShowsHeartbeats) {
  auto spec = spec_of({"@1", "beat", "12", "5", "sleep", "20"}, 2);
  Heartbeat::State seen;
  spec.on_tick = [&](const LaunchView& view) {
    seen = view.ranks[1].state;
    if (seen.num_beats > 0) view.kill(1, SIGKILL);
  };
  const auto result = launch(spec);
  EXPECT_EQ(seen.step, 12);
  EXPECT_EQ(seen.phase, Phase::save);
  ASSERT_TRUE(result.root_cause);
  EXPECT_EQ(result.root_cause->rank, 1);
  EXPECT_EQ(result.root_cause->phase, "save");
}

}  // namespace
}  // namespace assay::test
