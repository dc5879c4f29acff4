#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace assay {

/// Who has to act on an error. Decides the exit code.
enum class ErrorKind { usage, recipe, data, io, device, memory, communication, numeric, internal };

/// Exit codes of every program of this project.
enum ExitCode : int { exit_done = 0, exit_rejected = 1, exit_usage = 2, exit_incomplete = 3 };

/// The one error type. `message` names the thing, the value and the next step; where in the source it was made is for
/// the events, not for the user.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::source_location where = std::source_location::current())
      : std::runtime_error(message), kind_(kind), where_(where) {}
  ErrorKind kind() const { return kind_; }
  /// "trainer.cpp:123".
  std::string where() const;

 private:
  ErrorKind kind_;
  std::source_location where_;
};

/// "usage", "recipe", ... as written into events and results.
std::string_view name_of(ErrorKind kind);

/// Inverse of name_of; an unknown name is `internal`.
ErrorKind error_kind_from_name(std::string_view name);

/// usage, recipe, data: 2. numeric, memory: 1. io, device, communication, internal: 3.
ExitCode exit_code_of(ErrorKind kind);

/// Throws Error{internal}. For broken invariants of this program, never for a user's mistake.
[[noreturn]] void fail_check(const char* condition, std::source_location where = std::source_location::current());

}  // namespace assay

#define ASSAY_CHECK(condition) ((condition) ? void(0) : ::assay::fail_check(#condition))
