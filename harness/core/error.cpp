#include "harness/core/error.h"

#include <array>
#include <cstddef>

namespace assay {
namespace {

struct KindRow {
  ErrorKind kind;
  std::string_view name;
  ExitCode exit_code;
};

constexpr std::array<KindRow, 9> kKinds{{
    {ErrorKind::usage, "usage", exit_usage},
    {ErrorKind::recipe, "recipe", exit_usage},
    {ErrorKind::data, "data", exit_usage},
    {ErrorKind::io, "io", exit_incomplete},
    {ErrorKind::device, "device", exit_incomplete},
    {ErrorKind::memory, "memory", exit_rejected},
    {ErrorKind::communication, "communication", exit_incomplete},
    {ErrorKind::numeric, "numeric", exit_rejected},
    {ErrorKind::internal, "internal", exit_incomplete},
}};

std::string text_of(const std::source_location& place) {
  const std::string_view file = place.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(place.line());
}

const KindRow& row_of(ErrorKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

}  // namespace

std::string_view name_of(ErrorKind kind) { return row_of(kind).name; }

ErrorKind error_kind_from_name(std::string_view name) {
  for (const auto& row : kKinds) {
    if (row.name == name) return row.kind;
  }
  return ErrorKind::internal;
}

ExitCode exit_code_of(ErrorKind kind) { return row_of(kind).exit_code; }

std::string Error::where() const { return text_of(where_); }

void fail_check(const char* condition, std::source_location where) {
  throw Error(ErrorKind::internal,
              std::string("internal error, please report it: ") + condition + " does not hold at " + text_of(where),
              where);
}

}  // namespace assay
