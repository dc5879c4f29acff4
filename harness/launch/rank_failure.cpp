#include "harness/launch/rank_failure.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/files.h"

namespace assay {
namespace {

constexpr std::int64_t kTailBytes = 65536;

/// The end of a file that may be long and whose last line may be cut short.
std::string tail_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const std::int64_t size = file.tellg();
  const std::int64_t from = std::max<std::int64_t>(0, size - kTailBytes);
  std::string text(static_cast<std::size_t>(size - from), '\0');
  file.seekg(from);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string text_field(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool read_error_event(const std::filesystem::path& events, int attempt, RankFailure& failure) {
  auto lines = split_lines(tail_of(events));
  std::reverse(lines.begin(), lines.end());
  for (const auto& line : lines) {
    const auto event = Json::parse(line, nullptr, false);
    if (!event.is_object() || text_field(event, "kind") != "error") continue;
    const auto its_attempt = event.find("attempt");
    if (its_attempt != event.end() && *its_attempt != attempt) return false;
    failure.error_kind = text_field(event, "error");
    failure.message = text_field(event, "message");
    if (const auto phase = text_field(event, "phase"); !phase.empty()) failure.phase = phase;
    return true;
  }
  return false;
}

bool read_error_file(const std::filesystem::path& path, RankFailure& failure) {
  const auto document = Json::parse(tail_of(path), nullptr, false);
  if (!document.is_object() || !document.contains("message")) return false;
  const Json& message = document["message"];
  failure.message = message.is_object() ? text_field(message, "message") : text_field(document, "message");
  return !failure.message.empty();
}

/// A lost connection, told in words or by the signal for writing into one.
bool follows_from_another(const RankFailure& failure) {
  return failure.error_kind == name_of(ErrorKind::communication) || failure.signal == SIGPIPE;
}

std::string entry_of(const RankFailure& failure, std::size_t index) {
  const std::string pid = std::to_string(failure.pid);
  std::string code = failure.exit_code ? std::to_string(*failure.exit_code) : failure.reason;
  std::string trace = failure.message;
  if (failure.signal) {
    code = std::to_string(-*failure.signal);
    trace = "Signal " + std::to_string(*failure.signal) + " (" + signal_name(*failure.signal) + ") received by PID " +
            pid + (trace.empty() ? "" : "\n") + trace;
  }
  std::string text = "[" + std::to_string(index) + "]:\n  time      : " + failure.time +
                     "\n  host      : " + failure.host + "\n  rank      : " + std::to_string(failure.rank) +
                     " (local_rank: " + std::to_string(failure.rank) + ")\n  exitcode  : " + code + " (pid: " + pid +
                     ")\n";
  if (!failure.phase.empty()) {
    text += "  phase     : " + failure.phase + " (step: " + std::to_string(failure.step) + ")\n";
  }
  return text + "  error     : " + (trace.empty() ? "none given" : trace) + "\n";
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe(const RankFailure& failure) {
  std::string text = "rank " + std::to_string(failure.rank) + " on " + failure.host + " (process " +
                     std::to_string(failure.pid) + ") ";
  if (failure.signal) {
    text += "was killed by signal " + std::to_string(*failure.signal) + " (" + signal_name(*failure.signal) + ")";
  } else if (failure.exit_code) {
    text += "ended with exit code " + std::to_string(*failure.exit_code);
  } else {
    text += failure.reason == "stopped" ? "is stopped and does not go on" : "makes no progress";
  }
  if (!failure.phase.empty()) text += " in phase " + failure.phase + " of step " + std::to_string(failure.step);
  return failure.message.empty() ? text : text + ": " + failure.message;
}

Json to_json(const RankFailure& failure) {
  Json json;
  json["rank"] = failure.rank;
  json["host"] = failure.host;
  json["pid"] = failure.pid;
  json["exit_code"] = failure.exit_code ? Json(*failure.exit_code) : Json();
  json["signal"] = failure.signal ? Json(*failure.signal) : Json();
  json["phase"] = failure.phase;
  json["step"] = failure.step;
  json["reason"] = failure.reason;
  json["error"] = failure.error_kind;
  json["message"] = failure.message;
  json["time"] = failure.time;
  json["sentence"] = describe(failure);
  return json;
}

int exit_code_of(const RankFailure& failure) {
  if (failure.exit_code) return *failure.exit_code;
  return failure.signal ? 128 + *failure.signal : exit_incomplete;
}

const RankFailure& find_root_cause(const std::vector<RankFailure>& failures) {
  ASSAY_CHECK(!failures.empty());
  const auto found = std::find_if_not(failures.begin(), failures.end(), follows_from_another);
  if (found == failures.end()) return failures.front();
  if (found->reason != "stalled") return *found;
  // All ranks stall when one does; the one that hangs is the one furthest behind.
  return *std::min_element(found, failures.end(), [](const RankFailure& a, const RankFailure& b) {
    return std::pair(a.reason != "stalled", a.step) < std::pair(b.reason != "stalled", b.step);
  });
}

bool read_own_words(const std::filesystem::path& events, const std::filesystem::path& error_file, int attempt,
                    RankFailure& failure) {
  return read_error_event(events, attempt, failure) || read_error_file(error_file, failure);
}

void write_error_file(const std::filesystem::path& path, const RankFailure& failure) {
  const Json extra{{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr))}};
  const Json message{{"message", describe(failure)}, {"extraInfo", extra}, {"errorCode", exit_code_of(failure)}};
  const auto whole = std::filesystem::absolute(path);
  make_folders(whole.parent_path());
  write_file_durably(whole, dump_json(Json{{"message", message}}) + "\n");
}

std::string failure_block(const std::string& program, const std::vector<RankFailure>& failures) {
  const RankFailure& root = find_root_cause(failures);
  const std::string thick(60, '=');
  const std::string thin(60, '-');
  std::string others;
  std::string cause;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    (&failures[i] == &root ? cause : others) += entry_of(failures[i], i);
  }
  return thick + "\n" + program + " FAILED\n" + thin + "\nFailures:\n" +
         (others.empty() ? "  <NO_OTHER_FAILURES>\n" : others) + thin + "\nRoot Cause (first observed failure):\n" +
         cause + thick + "\n";
}

}  // namespace assay
