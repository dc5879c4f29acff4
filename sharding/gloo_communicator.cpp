#include <ATen/ATen.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "sharding/communicator.h"

namespace assay {
namespace {

std::string first_line(const char* text) {
  const std::string whole = text;
  return whole.substr(0, whole.find('\n'));
}

// The same memory under a tensor that does not own it. The transport's threads let go of a tensor at a time of their
// own; the memory itself must be released by the trainer's thread, or the order of releases is not reproducible.
at::Tensor unowned(const at::Tensor& tensor) {
  ASSAY_CHECK(tensor.is_contiguous());
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.options());
}

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, int rank, int world_size, const Clock& clock)
      : Communicator(rank, world_size, clock), group_(std::move(group)) {}

 protected:
  std::future<void> run(const CollectiveCall& call) override {
    std::packaged_task<void()> task([&] { perform(call); });
    task();
    return task.get_future();
  }

 private:
  void perform(const CollectiveCall& call) {
    std::vector<std::int64_t> equal_parts;
    c10d::BroadcastOptions options;
    options.rootRank = call.root;
    at::Tensor out = call.output.defined() ? unowned(call.output) : at::Tensor();
    at::Tensor in = call.input.defined() ? unowned(call.input) : at::Tensor();
    std::vector<at::Tensor> outs{out};
    switch (call.kind) {
      case CollectiveCall::Kind::all_gather:
        return attempt("all_gather", [&] { return group_->_allgather_base(out, in, {}); });
      case CollectiveCall::Kind::all_to_all:
        return attempt("all_to_all", [&] { return group_->alltoall_base(out, in, equal_parts, equal_parts, {}); });
      case CollectiveCall::Kind::broadcast:
        return attempt("broadcast", [&] { return group_->broadcast(outs, options); });
      case CollectiveCall::Kind::barrier:
        return attempt("barrier", [&] { return group_->barrier({}); });
    }
  }

  // The transport's staging is not device memory, and its errors become ours.
  template <class Start>
  void attempt(const char* operation, Start start) {
    const UntrackedScope untracked;
    try {
      start()->wait();
    } catch (const std::exception& error) {
      throw Error(ErrorKind::communication, std::string(operation) + " failed on rank " + std::to_string(rank()) +
                                                " of " + std::to_string(world_size()) + ": " +
                                                first_line(error.what()) + "; look at the other ranks for the cause");
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const Rendezvous& rendezvous, int rank, int world_size,
                                                     double timeout_seconds, const Clock& clock) {
  const UntrackedScope untracked;
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds * 1000));
  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<std::uint16_t>(rendezvous.port);
    store_options.isServer = rendezvous.is_server;
    store_options.numWorkers = static_cast<std::size_t>(world_size);
    store_options.waitWorkers = false;
    store_options.timeout = timeout;
    store_options.useLibUV = false;
    if (rendezvous.listen_fd >= 0) store_options.masterListenFd = rendezvous.listen_fd;
    auto store = c10::make_intrusive<c10d::TCPStore>(rendezvous.host, store_options);
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(rendezvous.prefix, std::move(store));
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(prefixed), rank, world_size, std::move(options));
    return std::make_unique<GlooCommunicator>(std::move(group), rank, world_size, clock);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::communication,
                "rank " + std::to_string(rank) + " of " + std::to_string(world_size) + " could not join at " +
                    rendezvous.host + ":" + std::to_string(rendezvous.port) + " within " +
                    std::to_string(static_cast<int>(timeout_seconds)) + " s: " + first_line(error.what()));
  }
}

}  // namespace assay
