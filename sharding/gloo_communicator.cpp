#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "harness/core/text.h"
#include "sharding/call_header.h"
#include "sharding/communicator.h"
#include "sharding/gloo_mailbox.h"
#include "sharding/operation_queue.h"

namespace assay {
namespace {

// All ranks of a job start at about the same time; a collective may have to wait for one that saves.
constexpr double kLongestRendezvousSeconds = 60;

/// A call as the communication thread sees it: addresses. If it held tensors it might be the last to release one, and
/// the order of releases would not be reproducible.
struct RawCall {
  CollectiveCall::Kind kind;
  CallHeader header;
  char* output = nullptr;
  const char* input = nullptr;
  std::int64_t output_bytes = 0;
};

RawCall raw(const CollectiveCall& call, std::int64_t sequence) {
  RawCall result{call.kind, header_of(call, sequence)};
  if (call.output.defined()) {
    result.output = static_cast<char*>(call.output.mutable_data_ptr());
    result.output_bytes = static_cast<std::int64_t>(call.output.nbytes());
  }
  if (call.input.defined()) result.input = static_cast<const char*>(call.input.const_data_ptr());
  return result;
}

using Sort = GlooMailbox::Sort;

/// Every rank sends straight to every other, so the bytes are the closed form's and nothing is staged. A receiver
/// speaks first: before its own header of an operation a rank asks for the payload and for the next header. So each
/// message goes one way at once, and who has got a header has read all that was sent before it: a rank may leave after
/// its last operation and nobody loses anything by that.
class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int rank, int world_size,
                   std::chrono::milliseconds timeout, const Clock& clock)
      : Communicator(rank, world_size, clock), mailbox_(std::move(group), timeout) {
    for (auto& headers : headers_) headers.resize(static_cast<std::size_t>(world_size));
    receive_headers(1);
  }

  ~GlooCommunicator() override { mailbox_.close(); }

 protected:
  std::future<void> run(const CollectiveCall& call) override {
    return queue_.push([this, own = raw(call, totals().num_operations)] { perform(own); });
  }

 private:
  void perform(const RawCall& call) {
    const std::int64_t sequence = call.header.sequence;
    name_errors(call, [&] {
      receive_payload(call);
      receive_headers(sequence + 1);
      for_each_peer([&](int peer) { mailbox_.send(sort_of(sequence), &call.header, sizeof(CallHeader), peer); });
      mailbox_.finish(sort_of(sequence));
    });
    auto& headers = headers_of(sequence);
    headers[static_cast<std::size_t>(rank())] = call.header;
    if (const auto difference = difference_among(headers)) {
      mailbox_.drop();
      throw Error(ErrorKind::communication, *difference);
    }
    name_errors(call, [&] {
      send_payload(call);
      mailbox_.finish(Sort::payload);
    });
  }

  static Sort sort_of(std::int64_t sequence) { return sequence % 2 == 0 ? Sort::even_header : Sort::odd_header; }

  std::vector<CallHeader>& headers_of(std::int64_t sequence) {
    return headers_[static_cast<std::size_t>(sequence % 2)];
  }

  void receive_headers(std::int64_t sequence) {
    for_each_peer([&](int peer) {
      auto& header = headers_of(sequence)[static_cast<std::size_t>(peer)];
      mailbox_.receive(sort_of(sequence), &header, sizeof header, peer);
    });
  }

  void receive_payload(const RawCall& call) {
    if (call.output_bytes == 0) return;
    for_each_peer([&](int peer) {
      if (char* to = target_of(call, peer)) mailbox_.receive(Sort::payload, to, bytes_for_each(call), peer);
    });
  }

  void send_payload(const RawCall& call) {
    if (call.output_bytes == 0) return;
    for_each_peer([&](int peer) {
      if (const char* from = source_for(call, peer)) mailbox_.send(Sort::payload, from, bytes_for_each(call), peer);
    });
    char* to = target_of(call, rank());
    const char* from = source_for(call, rank());
    if (to && from && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes_for_each(call)));
  }

  std::int64_t bytes_for_each(const RawCall& call) const {
    return call.kind == CollectiveCall::Kind::broadcast ? call.output_bytes : call.output_bytes / world_size();
  }

  /// Where the payload from a rank goes; null: none comes.
  char* target_of(const RawCall& call, int peer) const {
    if (call.kind == CollectiveCall::Kind::broadcast) return peer == call.header.root ? call.output : nullptr;
    return call.output + peer * bytes_for_each(call);
  }

  /// The payload for a rank; null: none.
  const char* source_for(const RawCall& call, int peer) const {
    if (call.kind == CollectiveCall::Kind::broadcast) return rank() == call.header.root ? call.output : nullptr;
    return call.kind == CollectiveCall::Kind::all_to_all ? call.input + peer * bytes_for_each(call) : call.input;
  }

  template <class Action>
  void for_each_peer(Action action) const {
    for (int distance = 1; distance < world_size(); ++distance) action((rank() + distance) % world_size());
  }

  template <class Action>
  void name_errors(const RawCall& call, Action action) {
    try {
      action();
    } catch (const std::exception& error) {
      mailbox_.drop();
      throw Error(ErrorKind::communication, name_of(call.kind) + " failed on rank " + std::to_string(rank()) + " of " +
                                                std::to_string(world_size()) + " at " + error.what() +
                                                "; look at the other ranks for the cause");
    }
  }

  std::array<std::vector<CallHeader>, 2> headers_;  // by rank, of the operation that runs and of the next
  GlooMailbox mailbox_;                             // writes into them as long as it lives
  OperationQueue queue_;                            // ends first
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const Rendezvous& rendezvous, int rank, int world_size,
                                                     double timeout_seconds, const Clock& clock) {
  const UntrackedScope untracked;
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  };
  const double longest_wait = std::min(timeout_seconds, kLongestRendezvousSeconds);
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<std::uint16_t>(rendezvous.port);
    store_options.isServer = rendezvous.is_server;
    store_options.numWorkers = static_cast<std::size_t>(world_size);
    store_options.waitWorkers = false;
    store_options.timeout = milliseconds(longest_wait);
    store_options.useLibUV = false;
    if (rendezvous.listen_fd >= 0) store_options.masterListenFd = rendezvous.listen_fd;
    auto store = c10::make_intrusive<c10d::TCPStore>(rendezvous.host, store_options);
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(rendezvous.prefix, std::move(store));
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(longest_wait));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    options->threads = 1;  // messages need none
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(prefixed), rank, world_size, std::move(options));
    return std::make_unique<GlooCommunicator>(std::move(group), rank, world_size, milliseconds(timeout_seconds), clock);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::communication,
                "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " could not join at " +
                    rendezvous.host + ":" + std::to_string(rendezvous.port) + " within " +
                    std::to_string(static_cast<int>(longest_wait)) + " s: " + first_line(error.what()));
  }
}

}  // namespace assay
