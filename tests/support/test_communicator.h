#pragma once

#include <unistd.h>

#include <memory>

#include "harness/core/clock.h"
#include "harness/launch/rendezvous.h"
#include "sharding/communicator.h"
#include "tests/support/rank_threads.h"

namespace assay {

/// Among ranks that are threads of this process: `socket` is of the caller and outlives the communicators.
inline std::unique_ptr<Communicator> join(const ListeningSocket& socket, int rank, int world_size,
                                          double timeout_seconds, const Clock& clock) {
  Rendezvous rendezvous;
  rendezvous.port = socket.port;
  rendezvous.is_server = rank == 0;
  if (rank == 0) rendezvous.listen_fd = ::dup(socket.fd.get());  // the store closes it
  return make_gloo_communicator(rendezvous, rank, world_size, timeout_seconds, clock);
}

/// A communicator among ranks that are threads of this process; `port` is one that no other test uses at that moment.
inline std::unique_ptr<Communicator> make_test_communicator(int rank, int world_size, int port, const Clock& clock) {
  if (world_size == 1) return make_fake_communicator(0, 1, clock);
  Rendezvous rendezvous;
  rendezvous.port = port;
  rendezvous.is_server = rank == 0;
  return make_gloo_communicator(rendezvous, rank, world_size, /*timeout_seconds=*/30, clock);
}

}  // namespace assay
