#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace assay {

/// How a process ended: one of the two is set, or none if other code of this program took the status away.
struct ExitStatus {
  std::optional<int> code;
  std::optional<int> signal;
  bool success() const { return code == 0; }
};

/// A started process that leads its own process group. Owned: the destructor kills the group and reaps the process.
class ChildProcess {
 public:
  struct Options {
    std::vector<std::string> command;      ///< path of the executable, then its arguments
    std::vector<std::string> environment;  ///< NAME=value, the whole of it
    int standard_input = -1;               ///< descriptors that become 0, 1 and 2
    int standard_output = -1;
    int standard_error = -1;
    int kept_fd = -1;  ///< one more descriptor the process inherits under its own number, -1 for none
  };

  /// Returns when the executable runs. Throws Error{io}.
  explicit ChildProcess(const Options& options);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }

  /// Does not block. Once the process has ended, what is left of its group is killed and the process is reaped; the
  /// same status is returned from then on.
  std::optional<ExitStatus> poll();

  /// Sends a signal to the whole group; nothing happens after the end.
  void signal_group(int signal) const;

  /// Nothing unless the process is stopped by a signal (state T, not by a debugger); else how often its main thread was
  /// taken off a core: the same number twice means that it did not go on in between.
  std::optional<std::int64_t> stopped_after() const;

 private:
  pid_t pid_ = -1;
  bool running_ = false;
  std::optional<ExitStatus> status_;
};

}  // namespace assay
