#include "harness/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace assay {
namespace {

spdlog::logger& logger() {
  static const auto instance = [] {
    auto created = std::make_shared<spdlog::logger>("assay", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%^%v%$");
    return created;
  }();
  return *instance;
}

}  // namespace

void start_log(const std::string& prefix, LogLevel level) {
  std::string escaped;
  for (const char c : prefix) escaped += c == '%' ? std::string("%%") : std::string(1, c);
  logger().set_pattern("%^" + escaped + "%v%$");
  logger().set_level(level == LogLevel::quiet ? spdlog::level::warn : spdlog::level::info);
}

void log_info(const std::string& message) { logger().info("{}", message); }
void log_warning(const std::string& message) { logger().warn("warning: {}", message); }
void log_error(const std::string& message) { logger().error("error: {}", message); }

}  // namespace assay
