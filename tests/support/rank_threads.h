#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace assay {

/// Runs `body(rank)` on one thread a rank, joins all, and rethrows the first error. For collectives: the communicator's
/// time-out ends a rank whose peer has failed.
inline void run_ranks(int world_size, const std::function<void(int)>& body) {
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
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace assay
