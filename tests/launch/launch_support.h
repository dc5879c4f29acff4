#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/core/files.h"
#include "harness/launch/child_process.h"
#include "harness/launch/launcher.h"
#include "tests/support/processes.h"
#include "tests/support/temporary_folder.h"

namespace assay::test {

inline const std::string kRankProgram = ASSAY_RANK_PROGRAM;

/// The job folder of one launch, and a folder where ranks leave proofs of what they did.
class LaunchTest : public testing::Test {
 protected:
  LaunchSpec spec_of(std::vector<std::string> behaviour, int nproc = 2) {
    behaviour.insert(behaviour.begin(), kRankProgram);
    LaunchSpec spec;
    spec.program = std::move(behaviour);
    spec.nproc = nproc;
    spec.folder = folder.path / "job";
    spec.environment["PROOF_FOLDER"] = folder.path.string();
    spec.echo = false;
    return spec;
  }

  /// What rank `rank` left under this name, empty if nothing yet.
  std::string proof(const std::string& name, int rank) const {
    const auto path = folder.path / (name + "-" + std::to_string(rank));
    return std::filesystem::exists(path) ? read_text_file(path) : "";
  }
  int pid_of_proof(const std::string& name, int rank) const { return std::atoi(proof(name, rank).c_str()); }

  std::string log(int rank, const std::string& stream) const {
    return read_text_file(folder.path / "job/logs" / ("rank_0000" + std::to_string(rank) + "." + stream));
  }

  /// `assay launch` in a process of its own; its output goes to terminal.out and terminal.err.
  ChildProcess start_launcher(const std::vector<std::string>& options, const std::vector<std::string>& program) {
    std::vector<std::string> command{kRankProgram, "launch", "--standalone", "--log-dir",
                                     (folder.path / "logs").string()};
    command.insert(command.end(), options.begin(), options.end());
    command.emplace_back("--");
    command.insert(command.end(), program.begin(), program.end());
    const FileDescriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const FileDescriptor out(
        ::open((folder.path / "terminal.out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    const FileDescriptor err(
        ::open((folder.path / "terminal.err").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    std::vector<std::string> environment{"PROOF_FOLDER=" + folder.path.string(), "PATH=/usr/bin:/bin"};
    for (const auto& [name, value] : launcher_environment) environment.push_back(name + "=" + value);
    return ChildProcess({.command = command,
                         .environment = environment,
                         .standard_input = input.get(),
                         .standard_output = out.get(),
                         .standard_error = err.get(),
                         .kept_fd = -1});
  }

  std::string terminal(const std::string& stream) const { return read_text_file(folder.path / ("terminal." + stream)); }

  /// Waits for the end of a process, at most 20 s.
  static ExitStatus end_of(ChildProcess& process) {
    EXPECT_TRUE(wait_until([&] { return process.poll().has_value(); }, 20)) << "the launcher does not end";
    return process.poll().value_or(ExitStatus{});
  }

  TemporaryFolder folder;
  std::map<std::string, std::string> launcher_environment;
};

}  // namespace assay::test
