#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>

#include "harness/core/memory_scope.h"

namespace assay {

/// What a rank is at, in memory shared with its launcher through a small mapped file, so that the launcher knows the
/// last phase and step of a rank that was killed. A rank writes, the launcher reads; both hold the file mapped.
class Heartbeat {
 public:
  struct State {
    std::int64_t step = 0;  ///< step being worked on, 0 before the first
    Phase phase = Phase::load;
    std::uint64_t num_beats = 0;  ///< grows with every beat: no growth means no progress
  };

  /// Creates the file if it is missing. Throws Error{io}.
  explicit Heartbeat(const std::filesystem::path& path);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void beat(std::int64_t step, Phase phase);
  State read() const;

 private:
  struct Shared {
    std::atomic<std::int64_t> step;
    std::atomic<std::int64_t> phase;
    std::atomic<std::uint64_t> num_beats;
  };
  Shared* shared_ = nullptr;
};

/// The launcher names the file of a rank by this variable of the environment.
inline constexpr const char* kHeartbeatVariable = "ASSAY_HEARTBEAT_FILE";

}  // namespace assay
