#include "harness/acceptance/checksums.h"

#include <algorithm>
#include <map>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/files.h"

namespace assay {
namespace fs = std::filesystem;

namespace {

using Checksums = std::map<std::string, std::string>;  // by the file's path below the run folder

/// sha256sum's own way to write a name with a backslash or a newline: escaped, with a backslash before the line.
std::string checksum_line(const std::string& sum, const std::string& name) {
  std::string escaped;
  for (const char letter : name) {
    if (letter == '\\')
      escaped += "\\\\";
    else if (letter == '\n')
      escaped += "\\n";
    else
      escaped += letter;
  }
  return (escaped == name ? "" : "\\") + sum + "  " + escaped + "\n";
}

std::string unescaped(std::string_view text) {
  std::string name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size();
    if (escaped) ++i;
    name += escaped && text[i] == 'n' ? '\n' : text[i];
  }
  return name;
}

Checksums read_checksums(const fs::path& path) {
  constexpr std::size_t kDigits = 64;
  Checksums sums;
  for (const auto& whole : split_lines(read_text_file(path))) {
    const bool escaped = whole.starts_with('\\');
    const auto line = std::string_view(whole).substr(escaped ? 1 : 0);
    const auto digits = line.substr(0, kDigits);
    const bool good = line.size() > kDigits + 2 && line.substr(kDigits, 2) == "  " &&
                      digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    if (!good) {
      throw Error(ErrorKind::io, path.string() + " is damaged, so the evidence of this run proves nothing: \"" + whole +
                                     "\" is no line of sha256sum; put back the folder as it was, or run again");
    }
    const auto name = line.substr(kDigits + 2);
    sums[escaped ? unescaped(name) : std::string(name)] = digits;
  }
  return sums;
}

/// What evaluation reads without being told: a file of that name counts wherever it comes from.
bool is_read_by_evaluation(const std::string& name) {
  return name.starts_with("jobs/") || name == "recipe.yaml" || name == "machine.json" || name == "limits.yaml";
}

std::string change_of(const fs::path& file, const std::string& sum) {
  std::error_code code;
  if (!fs::exists(file, code)) return "is missing";
  if (!fs::is_regular_file(file, code)) return "is no file any more";
  return sha256_of_file(file) == sum ? "" : "was changed";
}

}  // namespace

void write_checksums(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink() || !entry.is_regular_file()) continue;
    const auto name = fs::relative(entry.path(), folder).string();
    if (name != kChecksums) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const auto& name : names) text += checksum_line(sha256_of_file(folder / name), name);
  write_file_durably(folder / kChecksums, text);
}

void check_evidence(const fs::path& folder, const std::set<std::string>& rewritten) {
  const auto sums = read_checksums(folder / kChecksums);
  std::string problems;
  for (const auto& [name, sum] : sums) {
    const auto change = rewritten.contains(name) ? "" : change_of(folder / name, sum);
    if (!change.empty()) problems += "\n  " + name + " " + change;
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto name = entry.path().lexically_relative(folder).string();
    const bool is_folder = entry.is_directory() && !entry.is_symlink();
    if (!is_folder && is_read_by_evaluation(name) && !sums.contains(name)) problems += "\n  " + name + " was added";
  }
  if (problems.empty()) return;
  throw Error(ErrorKind::io, "the evidence in " + folder.string() + " is not what " + kChecksums + " says:" + problems +
                                 "\nNothing was evaluated or written; put back the files as they were, or run again");
}

}  // namespace assay
