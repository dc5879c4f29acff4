#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace assay {

/// Messages between this rank and others, straight from and into memory of the caller: no copy, no allocation of device
/// memory. There are three sorts, and the n-th of a sort that is sent to a rank is the n-th that it receives. One
/// thread at a time, but for close(). Errors are Error{communication} that name the other rank.
class GlooMailbox {
 public:
  enum class Sort { even_header, odd_header, payload };

  GlooMailbox(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::chrono::milliseconds timeout)
      : group_(std::move(group)), timeout_(timeout) {}

  /// Start a message and return. A message that is sent after the other rank has said that it receives it goes out at
  /// once.
  void send(Sort sort, const void* data, std::int64_t bytes, int peer);
  void receive(Sort sort, void* data, std::int64_t bytes, int peer);

  /// Blocks until all messages of this sort that were started have been sent and received. Throws after the time-out,
  /// if a peer is lost, or once the mailbox is closed.
  void finish(Sort sort);

  /// Gives all messages up after an error. Afterwards none of their memory is touched any more.
  void drop();

  /// From any thread: ends finish() at once, also every later one.
  void close();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    int peer;
  };
  void add(Sort sort, c10::intrusive_ptr<c10d::Work> work, int peer);
  std::vector<Message>& of(Sort sort) { return messages_[static_cast<std::size_t>(sort)]; }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // close() reads what the one thread writes
  std::array<std::vector<Message>, 3> messages_;
  bool closed_ = false;
};

}  // namespace assay
