#include "harness/core/clock.h"

#include <time.h>

#include <array>
#include <cstdio>
#include <ctime>

namespace assay {
namespace {

double read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

double SystemClock::wall_seconds() const { return read_clock(CLOCK_MONOTONIC); }
double SystemClock::cpu_seconds() const { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }

std::string utc_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::array<char, 40> text{};
  const auto length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text.data() + length, text.size() - length, ".%06ldZ", now.tv_nsec / 1000);
  return text.data();
}

std::string utc_now_compact() {
  const auto now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 40> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
  return text.data();
}

}  // namespace assay
