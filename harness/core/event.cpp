#include "harness/core/event.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "harness/core/clock.h"
#include "harness/core/error.h"

namespace assay {
namespace {

/// Removes what is left of a line that was not written whole: the next event must not be appended to it.
void cut_after_last_line(int fd, const std::filesystem::path& path) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) throw_errno("stat", path);
  off_t end = facts.st_size;
  for (char last = 0; end > 0; --end) {
    if (::pread(fd, &last, 1, end - 1) != 1) throw_errno("read", path);
    if (last == '\n') break;
  }
  if (end < facts.st_size && ::ftruncate(fd, end) != 0) throw_errno("truncate", path);
}

/// What every reader of events takes for granted.
void check_event(const Json& event) {
  const auto is_number = [&](const char* key) { return event.contains(key) && event[key].is_number_integer(); };
  const bool good = event.is_object() && event.contains("kind") && event["kind"].is_string() && is_number("rank") &&
                    is_number("step") && is_number("attempt");
  if (!good) throw Error(ErrorKind::data, "this is no event: kind, rank, step and attempt are not all there");
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& path, int rank, int attempt)
    : path_(path),
      file_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      rank_(rank),
      attempt_(attempt) {
  if (!file_) throw_errno("open", path);
  cut_after_last_line(file_.get(), path);
}

void EventWriter::write(std::string_view kind, std::int64_t step, const Json& fields) {
  Json event{{"kind", kind}, {"time", utc_now()}, {"rank", rank_}, {"step", step}, {"attempt", attempt_}};
  event.update(fields);
  const std::string line = dump_json(event) + "\n";
  try {
    write_all(file_.get(), line.data(), line.size(), path_);
  } catch (const Error&) {
    cut_after_last_line(file_.get(), path_);
    throw;
  }
}

namespace {

std::string rank_name(int rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank_%05d", rank);
  return name.data();
}

}  // namespace

std::filesystem::path memory_snapshot_file(const std::filesystem::path& job_folder, int rank) {
  return job_folder / ("memory_snapshot_" + rank_name(rank) + ".pickle");
}

std::filesystem::path memory_trace_file(const std::filesystem::path& job_folder, int rank) {
  return job_folder / ("trace_" + rank_name(rank) + ".json");
}

std::filesystem::path rank_event_file(const std::filesystem::path& job_folder, int rank) {
  return job_folder / "events" / (rank_name(rank) + ".jsonl");
}

std::vector<Json> read_events(const std::filesystem::path& path) {
  std::vector<Json> events;
  if (!std::filesystem::exists(path)) return events;
  const std::string text = read_text_file(path);
  const auto lines = split_lines(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const bool cut_short = i + 1 == lines.size() && text.back() != '\n';
    if (cut_short) break;
    try {
      events.push_back(parse_json(lines[i], "line " + std::to_string(i + 1)));
      check_event(events.back());
    } catch (const Error& error) {
      throw Error(error.kind(), path.string() + ":" + std::to_string(i + 1) + " is damaged (" + error.what() +
                                    "); put back a whole copy of the file, or remove that line to go on without it");
    }
  }
  return events;
}

}  // namespace assay
