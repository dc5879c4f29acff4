#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace assay {

/// Messages between this rank and others, one round of them at a time, straight from and into memory of the caller: no
/// copy, no allocation of device memory. All methods but close() belong to one thread. Errors are Error{communication}
/// that name the other rank.
class GlooMailbox {
 public:
  GlooMailbox(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::chrono::milliseconds timeout)
      : group_(std::move(group)), timeout_(timeout) {}

  /// Adds a message to the round. Does not block. The n-th message sent to a rank is the n-th that it receives.
  void send(const void* data, std::int64_t bytes, int peer);
  void receive(void* data, std::int64_t bytes, int peer);

  /// Blocks until all messages of the round have been sent and received. Throws after the time-out, if a peer is lost,
  /// or once the mailbox is closed.
  void finish();

  /// Ends the round after an error. Afterwards none of its memory is touched any more.
  void drop();

  /// From any thread: ends finish() at once, also every later one.
  void close();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    int peer;
  };
  void add(c10::intrusive_ptr<c10d::Work> work, int peer);

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // close() reads what the one thread writes
  std::vector<Message> messages_;
  bool closed_ = false;
};

}  // namespace assay
