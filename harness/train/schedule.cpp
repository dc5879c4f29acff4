#include "harness/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace assay {
namespace {

constexpr double kStableShare = 0.8;

double decay_factor(const ScheduleOptions& schedule, double progress) {
  const double floor = schedule.min_lr_ratio;
  switch (schedule.name) {
    case ScheduleName::cosine:
      return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case ScheduleName::linear:
      return floor + (1 - floor) * (1 - progress);
    case ScheduleName::wsd:
      return floor + (1 - floor) * std::min(1.0, (1 - progress) / (1 - kStableShare));
    case ScheduleName::constant:
      break;
  }
  return 1;
}

}  // namespace

double learning_rate_at(const ScheduleOptions& schedule, double peak, std::int64_t step, std::int64_t max_steps) {
  const std::int64_t done = step - 1;
  const std::int64_t warmup = schedule.warmup_steps;
  if (done < warmup) {
    const std::int64_t numerator = schedule.convention == WarmupConvention::transformers ? done : step;
    return peak * static_cast<double>(numerator) / static_cast<double>(warmup);
  }
  const double remaining = static_cast<double>(std::max<std::int64_t>(1, max_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(done - warmup) / remaining);
  return peak * decay_factor(schedule, progress);
}

}  // namespace assay
