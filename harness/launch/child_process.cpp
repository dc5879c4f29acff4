#include "harness/launch/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/files.h"

namespace assay {
namespace {

std::vector<char*> pointers_of(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// Own group, no blocked signals, none ignored that the launcher ignores for itself (a shell ignores SIGINT for
/// background jobs). SIGHUP stays as it was, for nohup.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    ::posix_spawnattr_init(&value_);
    sigset_t none;
    sigset_t reset;
    ::sigemptyset(&none);
    ::sigemptyset(&reset);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGCHLD, SIGXFSZ}) ::sigaddset(&reset, signal);
    ::posix_spawnattr_setsigmask(&value_, &none);
    ::posix_spawnattr_setsigdefault(&value_, &reset);
    ::posix_spawnattr_setpgroup(&value_, 0);
    ::posix_spawnattr_setflags(&value_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnAttributes() { ::posix_spawnattr_destroy(&value_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &value_; }

 private:
  posix_spawnattr_t value_;
};

class FileActions {
 public:
  FileActions() { ::posix_spawn_file_actions_init(&value_); }
  ~FileActions() { ::posix_spawn_file_actions_destroy(&value_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  void duplicate(int from, int to) { ::posix_spawn_file_actions_adddup2(&value_, from, to); }
  const posix_spawn_file_actions_t* get() const { return &value_; }

 private:
  posix_spawn_file_actions_t value_;
};

}  // namespace

ChildProcess::ChildProcess(const Options& options) {
  FileActions actions;
  std::array<FileDescriptor, 3> streams;
  const std::array<int, 3> given{options.standard_input, options.standard_output, options.standard_error};
  for (int i = 0; i < 3; ++i) {
    // Above 2 first, so that no duplication overwrites the source of a later one.
    streams[i] = FileDescriptor(::fcntl(given[i], F_DUPFD_CLOEXEC, 3));
    if (!streams[i]) throw_errno("fcntl", "a standard stream of " + options.command.front());
    actions.duplicate(streams[i].get(), i);
  }
  if (options.kept_fd >= 0) actions.duplicate(options.kept_fd, options.kept_fd);  // clears close-on-exec
  const SpawnAttributes attributes;
  const auto arguments = pointers_of(options.command);
  const auto environment = pointers_of(options.environment);
  const int failure = ::posix_spawn(&pid_, options.command.front().c_str(), actions.get(), attributes.get(),
                                    arguments.data(), environment.data());
  if (failure != 0) {
    throw Error(ErrorKind::io, "cannot start a process for " + options.command.back() + ": " + std::strerror(failure));
  }
  running_ = true;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_), running_(std::exchange(other.running_, false)), status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (!running_) return;
  signal_group(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<ExitStatus> ChildProcess::poll() {
  if (!running_) return status_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
    if (errno != ECHILD) return status_;
    running_ = false;
    return status_.emplace();
  }
  if (info.si_pid == 0) return status_;
  // Before it is reaped: until then the number of the group cannot belong to anyone else.
  signal_group(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  status_ = info.si_code == CLD_EXITED ? ExitStatus{.code = info.si_status, .signal = std::nullopt}
                                       : ExitStatus{.code = std::nullopt, .signal = info.si_status};
  return status_;
}

void ChildProcess::signal_group(int signal) const {
  if (running_) ::kill(-pid_, signal);
}

std::optional<std::int64_t> ChildProcess::stopped_after() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
  std::int64_t num_switches = 0;
  bool stopped = false;
  for (std::string key, value; file >> key && std::getline(file, value);) {
    if (key == "State:") stopped = value.find('T') != std::string::npos;
    if (key == "voluntary_ctxt_switches:" || key == "nonvoluntary_ctxt_switches:") num_switches += std::stoll(value);
  }
  return stopped ? std::optional(num_switches) : std::nullopt;
}

}  // namespace assay
