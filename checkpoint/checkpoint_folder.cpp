#include "checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "checkpoint/manifest.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/log.h"

namespace assay {
namespace {

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kReplaced = ".replaced";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::size_t kMinDigits = 8;
constexpr std::size_t kMaxDigits = 18;  // fits std::int64_t

struct StepName {
  std::int64_t step = 0;
  std::string suffix;
};

std::optional<StepName> parse_name(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto digits_end = std::find_if_not(name.begin() + kPrefix.size(), name.end(),
                                           [](unsigned char letter) { return std::isdigit(letter) != 0; });
  const std::string digits(name.begin() + kPrefix.size(), digits_end);
  if (digits.size() < kMinDigits || digits.size() > kMaxDigits) return std::nullopt;
  return StepName{std::stoll(digits), std::string(digits_end, name.end())};
}

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code code;
  std::filesystem::directory_iterator entry(folder, code);
  for (; !code && entry != std::filesystem::directory_iterator(); entry.increment(code)) paths.push_back(entry->path());
  if (code && code != std::errc::no_such_file_or_directory) {
    throw Error(ErrorKind::io, "cannot list " + folder.string() + ": " + code.message());
  }
  return paths;
}

void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_errno("rename " + from.string() + " to", to);
}

std::filesystem::path with_suffix(std::filesystem::path path, std::string_view suffix) { return path += suffix; }

/// Takes the name away before the content, so that a checkpoint is never seen half removed.
void remove_complete(const std::filesystem::path& path, std::vector<std::filesystem::path>& removed) {
  const auto doomed = with_suffix(path, std::string(kTemporary) + "removed");
  remove_folder(doomed);
  if (std::rename(path.c_str(), doomed.c_str()) != 0 && errno != ENOENT) {
    log_warning("cannot remove old checkpoint " + path.string() + ": " + std::strerror(errno));
    return;
  }
  if (!remove_folder(doomed)) log_warning("cannot remove all of old checkpoint " + doomed.string());
  removed.push_back(path);
}

}  // namespace

std::string step_folder_name(std::int64_t step) {
  auto digits = std::to_string(step);
  if (digits.size() < kMinDigits) digits.insert(0, kMinDigits - digits.size(), '0');
  return std::string(kPrefix) + digits;
}

std::string rank_file_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank_%05d.safetensors", rank);
  return name;
}

std::vector<CompleteCheckpoint> list_complete(const std::filesystem::path& folder) {
  std::vector<CompleteCheckpoint> found;
  for (const auto& path : entries_of(folder)) {
    const auto name = parse_name(path.filename().string());
    std::error_code code;
    if (name && (name->suffix.empty() || name->suffix == kReplaced) &&
        std::filesystem::exists(path / manifest_name, code)) {
      found.push_back({name->step, path});
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& left, const auto& right) {
    return left.step != right.step ? left.step > right.step : left.path < right.path;
  });
  return found;
}

void remove_unfinished(const std::filesystem::path& folder) {
  for (const auto& path : entries_of(folder)) {
    const auto name = parse_name(path.filename().string());
    if (name && name->suffix.starts_with(kTemporary) && !remove_folder(path)) {
      throw Error(ErrorKind::io, "cannot remove the unfinished checkpoint " + path.string());
    }
  }
}

std::filesystem::path publish(const std::filesystem::path& temporary, std::int64_t step) {
  const auto folder = temporary.parent_path();
  const auto final_path = folder / step_folder_name(step);
  if (std::filesystem::exists(final_path / manifest_name)) {
    const auto replaced = with_suffix(final_path, kReplaced);
    remove_folder(replaced);
    rename_folder(final_path, replaced);
  } else {
    remove_folder(final_path);
  }
  rename_folder(temporary, final_path);
  sync_folder(folder);
  return final_path;
}

std::vector<std::filesystem::path> remove_old(const std::filesystem::path& folder, std::int64_t step, int keep_latest,
                                              const std::set<std::filesystem::path>& damaged) {
  ASSAY_CHECK(keep_latest >= 1);
  std::vector<std::filesystem::path> removed;
  int kept = 0;
  std::int64_t last_step = -1;
  for (const auto& checkpoint : list_complete(folder)) {
    // Of two with the same step the first is the new one; the other is the one it replaced.
    const bool replaced = checkpoint.step == last_step;
    last_step = checkpoint.step;
    if (checkpoint.step > step && !replaced && !damaged.contains(checkpoint.path)) continue;
    if (!replaced && !damaged.contains(checkpoint.path) && kept < keep_latest) {
      ++kept;
    } else {
      remove_complete(checkpoint.path, removed);
    }
  }
  return removed;
}

bool remove_folder(const std::filesystem::path& folder) noexcept {
  std::error_code code;
  std::filesystem::remove_all(folder, code);
  return !code;
}

}  // namespace assay
