#pragma once

#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "harness/core/error.h"

namespace assay {

/// Runs `body(rank)` on one thread a rank, joins all, and rethrows the first error that is not one of communication
/// (that of a rank whose peer has failed; the communicator's time-out ends it), or else the first.
inline void run_ranks(int world_size, const std::function<void(int)>& body) {
  // LibTorch's flight recorder is one for the process and not safe for several communicators at once; 0 turns it off.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::exception_ptr first;
  for (const auto& error : errors) {
    if (!error) continue;
    if (!first) first = error;
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      if (known.kind() == ErrorKind::communication) continue;
      throw;
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace assay
