#pragma once

#include <string>

namespace assay {

enum class LogLevel { quiet, normal };

/// Logs go to stderr, so that stdout holds results only. Not thread-safe: call it first in main.
/// `prefix` is put before every line ("rank 0: "); `level` quiet shows warnings and errors only.
void start_log(const std::string& prefix, LogLevel level);

void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);

}  // namespace assay
