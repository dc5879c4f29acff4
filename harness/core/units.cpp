#include "harness/core/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

namespace assay {
namespace {

constexpr std::array<std::pair<std::string_view, std::int64_t>, 10> kByteUnits{{
    {"", 1},
    {"B", 1},
    {"KiB", std::int64_t{1} << 10},
    {"MiB", std::int64_t{1} << 20},
    {"GiB", std::int64_t{1} << 30},
    {"TiB", std::int64_t{1} << 40},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
}};

std::string format_with(const char* pattern, double value, const char* unit) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value, unit);
  return text.data();
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const auto end = text.find_first_not_of("0123456789.");
  auto unit = end == std::string_view::npos ? std::string_view() : text.substr(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const auto number = parse_number(text.substr(0, end));
  if (!number) return std::nullopt;
  for (const auto& [name, factor] : kByteUnits) {
    if (unit != name) continue;
    const double bytes = *number * static_cast<double>(factor);
    if (bytes < 0 || bytes != std::floor(bytes) || bytes >= 9.2e18) return std::nullopt;
    return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

std::string format_bytes(std::int64_t bytes) {
  const double value = static_cast<double>(bytes);
  const double size = std::fabs(value);
  if (size < 1024) return std::to_string(bytes) + " B";
  if (size < 1024.0 * 1024) return format_with("%.2f %s", value / 1024, "KiB");
  if (size < 1024.0 * 1024 * 1024) return format_with("%.2f %s", value / (1024.0 * 1024), "MiB");
  return format_with("%.2f %s", value / (1024.0 * 1024 * 1024), "GiB");
}

std::string format_seconds(double seconds) {
  if (seconds >= 1) return format_with("%.2f %s", seconds, "s");
  if (seconds >= 1e-3) return format_with("%.1f %s", seconds * 1e3, "ms");
  return format_with("%.0f %s", seconds * 1e6, "us");
}

std::string format_number(double value) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

}  // namespace assay
