#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "sharding/call_header.h"
#include "sharding/communicator.h"
#include "sharding/gloo_mailbox.h"
#include "sharding/operation_queue.h"

namespace assay {
namespace {

// All ranks of a job start at about the same time; a collective may have to wait for one that saves.
constexpr double kLongestRendezvousSeconds = 60;

std::string first_line(const char* text) {
  const std::string whole = text;
  return whole.substr(0, whole.find('\n'));
}

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

/// Every rank sends straight to every other, so the bytes are the closed form's and nothing is staged.
class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int rank, int world_size,
                   std::chrono::milliseconds timeout, const Clock& clock)
      : Communicator(rank, world_size, clock), mailbox_(std::move(group), timeout), headers_(world_size) {}

  ~GlooCommunicator() override { mailbox_.close(); }

 protected:
  std::future<void> run(const CollectiveCall& call) override {
    return queue_.push([this, own = raw(call, totals().num_operations)] { perform(own); });
  }

 private:
  void perform(const RawCall& call) {
    headers_[index(rank())] = call.header;
    exchange(call, [&](int peer) {
      mailbox_.receive(&headers_[index(peer)], sizeof(CallHeader), peer);
      mailbox_.send(&call.header, sizeof(CallHeader), peer);
    });
    if (const auto difference = difference_among(headers_)) throw Error(ErrorKind::communication, *difference);
    if (call.output_bytes == 0) return;  // for a barrier the headers were all
    switch (call.kind) {
      case CollectiveCall::Kind::all_gather:
        return all_gather_bytes(call);
      case CollectiveCall::Kind::all_to_all:
        return all_to_all_bytes(call);
      case CollectiveCall::Kind::broadcast:
        return broadcast_bytes(call);
      case CollectiveCall::Kind::barrier:
        return;
    }
  }

  void all_gather_bytes(const RawCall& call) {
    const std::int64_t part = call.output_bytes / world_size();
    char* own = call.output + rank() * part;
    exchange(
        call,
        [&](int peer) {
          mailbox_.receive(call.output + peer * part, part, peer);
          mailbox_.send(call.input, part, peer);
        },
        [&] {
          if (own != call.input) std::memcpy(own, call.input, static_cast<std::size_t>(part));
        });
  }

  void all_to_all_bytes(const RawCall& call) {
    const std::int64_t part = call.output_bytes / world_size();
    const std::int64_t own = rank() * part;
    exchange(
        call,
        [&](int peer) {
          mailbox_.receive(call.output + peer * part, part, peer);
          mailbox_.send(call.input + peer * part, part, peer);
        },
        [&] { std::memcpy(call.output + own, call.input + own, static_cast<std::size_t>(part)); });
  }

  void broadcast_bytes(const RawCall& call) {
    const int root = static_cast<int>(call.header.root);
    exchange(call, [&](int peer) {
      if (rank() == root) mailbox_.send(call.output, call.output_bytes, peer);
      if (peer == root) mailbox_.receive(call.output, call.output_bytes, peer);
    });
  }

  /// One round of messages: `start` adds those with one peer; `meanwhile` is this rank's own work beside them.
  template <class Start, class Meanwhile = void (*)()>
  void exchange(
      const RawCall& call, Start start, Meanwhile meanwhile = [] {}) {
    try {
      for (int distance = 1; distance < world_size(); ++distance) start((rank() + distance) % world_size());
      meanwhile();
      mailbox_.finish();
    } catch (const std::exception& error) {
      mailbox_.drop();
      throw Error(ErrorKind::communication, name_of(call.kind) + " failed on rank " + std::to_string(rank()) + " of " +
                                                std::to_string(world_size()) + " at " + error.what() +
                                                "; look at the other ranks for the cause");
    }
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  GlooMailbox mailbox_;
  std::vector<CallHeader> headers_;  // of the operation that runs, by rank
  OperationQueue queue_;             // ends first
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
