#include "harness/core/event.h"

#include <fcntl.h>

#include <array>
#include <cstdio>

#include "harness/core/clock.h"
#include "harness/core/error.h"

namespace assay {

EventWriter::EventWriter(const std::filesystem::path& path, int rank, int attempt)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      rank_(rank),
      attempt_(attempt) {
  if (!file_) throw_errno("open", path);
}

void EventWriter::write(std::string_view kind, std::int64_t step, const Json& fields) {
  Json event{{"kind", kind}, {"time", utc_now()}, {"rank", rank_}, {"step", step}, {"attempt", attempt_}};
  event.update(fields);
  const std::string line = dump_json(event) + "\n";
  write_all(file_.get(), line.data(), line.size(), path_);
}

std::filesystem::path rank_event_file(const std::filesystem::path& job_folder, int rank) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "rank_%05d.jsonl", rank);
  return job_folder / "events" / name.data();
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
    events.push_back(parse_json(lines[i], path.string() + ":" + std::to_string(i + 1)));
  }
  return events;
}

}  // namespace assay
