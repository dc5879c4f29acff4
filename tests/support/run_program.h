#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/core/files.h"
#include "tests/support/processes.h"
#include "tests/support/temporary_folder.h"

namespace assay {

struct ProgramResult {
  int exit_code = -1;  ///< 128 + signal if it was killed, -1 if it could not be started
  std::string out;
  std::string err;
};

struct ProgramOptions {
  std::map<std::string, std::string> environment;  ///< over this process's own
  std::string folder = ".";                        ///< where it runs
};

/// A program that runs beside the test, without a shell and in a process group of its own. What is left of the group is
/// killed by the destructor, not before: a test sees what a program leaves behind.
class BackgroundProgram {
 public:
  BackgroundProgram(const std::string& program, const std::vector<std::string>& arguments,
                    const ProgramOptions& options = {}) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (output_.path / "out").c_str(), O_WRONLY | O_CREAT,
                                       0600);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (output_.path / "err").c_str(), O_WRONLY | O_CREAT,
                                       0600);
    ::posix_spawn_file_actions_addchdir_np(&actions, options.folder.c_str());
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::vector<std::string> words{program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    auto variables = variables_of(options);
    if (::posix_spawnp(&pid_, program.c_str(), &actions, &attributes, pointers_to(words).data(),
                       pointers_to(variables).data()) != 0) {
      pid_ = -1;
      exit_code_ = -1;
    }
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  ~BackgroundProgram() {
    if (pid_ < 0) return;
    ::kill(-pid_, SIGKILL);
    finish();
  }
  BackgroundProgram(const BackgroundProgram&) = delete;
  BackgroundProgram& operator=(const BackgroundProgram&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const { return written("out"); }
  std::string err() const { return written("err"); }

  /// Does not block.
  bool running() {
    int status = 0;
    if (!exit_code_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return !exit_code_;
  }

  /// To the program alone, not to its group.
  void send(int signal) {
    if (running()) ::kill(pid_, signal);
  }

  /// Waits for its end; after `seconds` the group is killed.
  ProgramResult finish(double seconds = 60) {
    if (!wait_until([&] { return !running(); }, seconds)) {
      ::kill(-pid_, SIGKILL);
      wait_until([&] { return !running(); }, 10);
    }
    return {exit_code_.value_or(-1), out(), err()};
  }

 private:
  static std::vector<std::string> variables_of(const ProgramOptions& options) {
    std::vector<std::string> variables;
    for (char** own = environ; *own != nullptr; ++own) {
      const std::string variable = *own;
      if (!options.environment.contains(variable.substr(0, variable.find('=')))) variables.push_back(variable);
    }
    for (const auto& [name, value] : options.environment) variables.push_back(name + "=" + value);
    return variables;
  }

  static std::vector<char*> pointers_to(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  std::string written(const char* stream) const {
    const auto path = output_.path / stream;
    return std::filesystem::exists(path) ? read_text_file(path) : "";
  }

  TemporaryFolder output_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
};

/// Runs a program to its end; after `seconds` it is killed.
inline ProgramResult run_program(const std::string& program, const std::vector<std::string>& arguments,
                                 double seconds = 60, const ProgramOptions& options = {}) {
  return BackgroundProgram(program, arguments, options).finish(seconds);
}

}  // namespace assay
