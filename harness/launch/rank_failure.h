#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/core/json.h"

namespace assay {

/// How and where a rank failed.
struct RankFailure {
  int rank = 0;
  std::string host;
  int pid = 0;
  std::optional<int> exit_code;  ///< reason exited
  std::optional<int> signal;     ///< reason killed
  std::string phase;             ///< last one the rank told of; empty for a program that tells none
  std::int64_t step = 0;         ///< last one, 0 before the first
  std::string reason;      ///< exited, killed, stopped (state T for too long) or stalled (no heartbeat for too long)
  std::string error_kind;  ///< name of an ErrorKind from the rank's error event; empty if it wrote none
  std::string message;     ///< of its error event or error.json, else its last lines on stderr
  std::string time;        ///< UTC, when it was seen
};

/// "SIGKILL" for 9; "signal 40" for one without a name.
std::string signal_name(int signal);

/// One sentence with rank, host, process, reason, phase and step; then the message, if there is one.
std::string describe(const RankFailure& failure);

/// All fields, and "sentence": what describe() says.
Json to_json(const RankFailure& failure);

/// What its end means to a shell: its exit code, 128 + signal if it was killed, 3 if it had to be ended.
int exit_code_of(const RankFailure& failure);

/// The first failure that is not a communication error (of stalled ranks: the one furthest behind); if there is none,
/// the first. Not for an empty list.
const RankFailure& find_root_cause(const std::vector<RankFailure>& failures);

/// Fills kind, message and phase from the rank's last error event of this attempt (`events` may be missing), else the
/// message from torchrun's error.json. False if the rank wrote neither. Never throws: damaged files count as missing.
bool read_own_words(const std::filesystem::path& events, const std::filesystem::path& error_file, int attempt,
                    RankFailure& failure);

/// error.json in torchrun's form, written where a launcher above this one asked for it. Throws Error{io}.
void write_error_file(const std::filesystem::path& path, const RankFailure& failure);

/// torchrun's block: the program, all failures, the root cause.
std::string failure_block(const std::string& program, const std::vector<RankFailure>& failures);

}  // namespace assay
