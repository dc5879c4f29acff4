#include "harness/train/rank_context.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "harness/core/files.h"
#include "harness/core/memory_scope.h"
#include "harness/core/text.h"

namespace assay {
namespace {

std::atomic<int> stop_signal{0};

extern "C" void note_stop_signal(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
}

at::Tensor bytes_tensor(const std::string& text, std::size_t size) {
  at::Tensor tensor = at::zeros({static_cast<std::int64_t>(size)}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(const World& world, double timeout_seconds, const Clock& clock,
                                                const std::string& another) {
  if (world.world_size == 1) return make_fake_communicator(0, 1, clock);
  if (world.local_world_size != world.world_size) {
    throw Error(ErrorKind::usage, "the job has " + std::to_string(world.world_size) + " ranks, " +
                                      std::to_string(world.local_world_size) +
                                      " of them on this node; this version runs on one node");
  }
  Rendezvous rendezvous;
  rendezvous.host = world.master_addr;
  rendezvous.port = world.master_port;
  rendezvous.is_server = world.rank == 0 && !world.agent_store;
  rendezvous.listen_fd = world.rank == 0 ? world.listen_fd.value_or(-1) : -1;
  // A restarted group must not read what the group before it left in a store that outlived it.
  rendezvous.prefix = "assay/" + std::to_string(world.restart_count);
  if (!another.empty()) {  // the store is there already
    rendezvous.is_server = false;
    rendezvous.listen_fd = -1;
    rendezvous.prefix += "/" + another;
  }
  return make_gloo_communicator(rendezvous, world.rank, world.world_size, timeout_seconds, clock);
}

std::vector<std::string> CommunicatorGroup::all_gather(const std::string& text) {
  const UntrackedScope untracked;
  const auto num_ranks = static_cast<std::size_t>(world_size());
  const at::Tensor own_size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  const at::Tensor sizes = at::empty({world_size()}, at::kLong);
  communicator_.all_gather(sizes, own_size);
  const auto* size_of = sizes.const_data_ptr<std::int64_t>();
  const auto longest =
      static_cast<std::size_t>(std::max<std::int64_t>(1, *std::max_element(size_of, size_of + num_ranks)));
  const at::Tensor all = at::empty({static_cast<std::int64_t>(longest * num_ranks)}, at::kByte);
  communicator_.all_gather(all, bytes_tensor(text, longest));
  std::vector<std::string> texts;
  const auto* data = static_cast<const char*>(all.const_data_ptr());
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    texts.emplace_back(data + rank * longest, static_cast<std::size_t>(size_of[rank]));
  }
  return texts;
}

int received_stop_signal() { return stop_signal.load(); }

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note_stop_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

double measure_gemm_gflops(const Clock& clock) {
  const UntrackedScope untracked;
  constexpr std::int64_t size = 768;
  constexpr double flops = 2.0 * size * size * size;
  const at::Tensor a = at::ones({size, size});
  const at::Tensor b = at::ones({size, size});
  at::Tensor c = at::mm(a, b);
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = clock.cpu_seconds();
    at::mm_out(c, a, b);
    best = std::max(best, flops / (clock.cpu_seconds() - start) * 1e-9);
  }
  return best;
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return error_of(error);
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorKind::memory,
            first_line(error.what_without_backtrace()) +
                "; lower train.micro_batch_size or data.sequence_length, or give a larger device_memory"};
  } catch (const c10::Error& error) {
    return {ErrorKind::internal, "an operator failed: " + first_line(error.what_without_backtrace())};
  } catch (const std::exception& error) {
    return {ErrorKind::internal, first_line(error.what())};
  }
}

}  // namespace assay
