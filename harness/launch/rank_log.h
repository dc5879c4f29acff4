#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "harness/core/files.h"

namespace assay {

/// Lines on their way to a terminal or pipe of this process. A reader that is slow or gone never blocks the launcher.
class Terminal {
 public:
  explicit Terminal(int fd) : fd_(fd) {}

  /// Writes as much as is taken without blocking. True when nothing is left, also when nobody reads any more.
  bool flush();

  /// Is there something that was not taken yet?
  bool is_busy() const { return !waiting_.empty(); }

  /// Nobody reads any more.
  bool is_closed() const { return closed_; }

  /// Adds prefix, text and a newline.
  void add_line(const std::string& prefix, std::string_view text);

 private:
  int fd_;
  std::string waiting_;
  bool closed_ = false;
};

/// One output stream of a rank. The rank writes straight into its file, so nothing it says is lost or blocks it,
/// whatever happens to the launcher or the terminal; the launcher reads the file behind it and shows whole lines with a
/// prefix.
class RankLog {
 public:
  /// Opens the file for appending; earlier attempts stay in it. `terminal` null: nothing is shown. Throws Error{io}.
  RankLog(const std::filesystem::path& path, std::string prefix, Terminal* terminal);

  /// For the rank.
  int write_fd() const { return write_.get(); }

  /// Shows what is new, as far as the terminal takes it without blocking. True if all was shown that is in the file
  /// now.
  bool show_new_lines();

  /// Shows a last line that has no newline. After show_new_lines() returned true and the rank has ended.
  void show_rest();

  /// The last lines that this attempt wrote, at most 4 KiB; empty if there are none.
  std::string last_lines(int count) const;

 private:
  void show(std::string_view chunk);

  std::string prefix_;
  Terminal* terminal_;
  FileDescriptor write_;
  FileDescriptor read_;
  std::int64_t start_ = 0;   ///< size before this attempt
  std::int64_t offset_ = 0;  ///< shown up to here
  std::string partial_;      ///< a line whose end has not been seen, at most kLongestLine
  bool after_return_ = false;
};

}  // namespace assay
