#include "harness/launch/signal_catcher.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>

#include "harness/core/error.h"

namespace assay {
namespace {

std::atomic<int> wake_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free, "it is used in a signal handler");

void note_signal(int signal) {
  const int saved = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = ::write(wake_fd.load(), &number, 1);
  errno = saved;
}

}  // namespace

SignalCatcher::SignalCatcher() {
  ASSAY_CHECK(wake_fd.load() < 0);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw_errno("pipe2", "the signal pipe");
  read_end_ = FileDescriptor(ends[0]);
  write_end_ = FileDescriptor(ends[1]);
  wake_fd = ends[1];
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = kSignals[i] == SIGPIPE ? SIG_IGN : note_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalCatcher::~SignalCatcher() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  wake_fd = -1;
}

std::vector<int> SignalCatcher::wait(double seconds) {
  pollfd entry{.fd = read_end_.get(), .events = POLLIN, .revents = 0};
  ::poll(&entry, 1, static_cast<int>(std::ceil(seconds * 1000)));
  std::vector<int> caught;
  std::array<unsigned char, 256> numbers{};
  for (ssize_t count; (count = ::read(read_end_.get(), numbers.data(), numbers.size())) > 0;) {
    for (ssize_t i = 0; i < count; ++i) {
      if (numbers[i] != SIGCHLD) caught.push_back(numbers[i]);
    }
  }
  return caught;
}

}  // namespace assay
