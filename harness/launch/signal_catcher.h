#pragma once

#include <array>
#include <csignal>
#include <vector>

#include "harness/core/files.h"

namespace assay {

/// While it lives, SIGINT, SIGTERM, SIGQUIT and SIGHUP (unless ignored, as under nohup) do not end this process but are
/// collected here, an ended child wakes up wait(), and writing to a closed pipe is an error instead of a signal. One at
/// a time in a process.
class SignalCatcher {
 public:
  SignalCatcher();
  ~SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

  /// Blocks until a signal comes, a child ends or the time is over. Returns the caught signals in their order.
  std::vector<int> wait(double seconds);

 private:
  static constexpr std::array<int, 6> kSignals{SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGCHLD, SIGPIPE};
  FileDescriptor read_end_;
  FileDescriptor write_end_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace assay
