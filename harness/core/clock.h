#pragma once

#include <cstdint>
#include <string>

namespace assay {

/// Where times come from. The real one and a fake one for tests; a dry run uses a fake one that never moves.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Seconds from an arbitrary start; never goes back.
  virtual double wall_seconds() const = 0;
  /// CPU seconds used by all threads of this process.
  virtual double cpu_seconds() const = 0;
};

class SystemClock final : public Clock {
 public:
  double wall_seconds() const override;
  double cpu_seconds() const override;
};

/// A clock that is set by hand.
class ManualClock final : public Clock {
 public:
  double wall_seconds() const override { return wall; }
  double cpu_seconds() const override { return cpu; }
  double wall = 0;
  double cpu = 0;
};

/// Now as "2026-11-30T20:45:18.123456Z" (RFC 3339, UTC).
std::string utc_now();

/// Now as "20261130-204518" (UTC), for names of folders.
std::string utc_now_compact();

}  // namespace assay
