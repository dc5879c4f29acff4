#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/core/files.h"
#include "harness/core/xxh3.h"

namespace assay {

/// Checksums of a file are made of pieces of this size; the last piece is shorter.
inline constexpr std::uint64_t chunk_bytes = std::uint64_t{8} << 20U;

/// What is known of a file that was written: enough to prove later that it is whole.
struct FileRecord {
  std::string name;  ///< without folder
  std::uint64_t size_bytes = 0;
  std::uint64_t chunk_bytes = assay::chunk_bytes;
  std::vector<std::string> chunk_checksums;  ///< XXH3-128 of each chunk, 32 hexadecimal digits
};

/// Writes a new file from front to back and makes its checksums while the bytes are in cache. A file that was not
/// finished is left as it is.
class CheckedFileWriter {
 public:
  /// Creates or empties the file. `on_chunk` (may be empty) is called after each chunk. Throws Error{io}.
  explicit CheckedFileWriter(const std::filesystem::path& path, std::function<void()> on_chunk = {});
  CheckedFileWriter(const CheckedFileWriter&) = delete;
  CheckedFileWriter& operator=(const CheckedFileWriter&) = delete;

  /// Appends the bytes. Throws Error{io}: a full disk, a file too large (where SIGXFSZ is ignored).
  void write(const void* data, std::uint64_t size);

  /// Waits until the file is on the disk (fsync) and closes it. Throws Error{io}.
  FileRecord finish();

 private:
  void end_chunk();

  std::filesystem::path path_;
  FileDescriptor file_;
  std::function<void()> on_chunk_;
  Xxh3 hash_;  ///< of the chunk in work
  FileRecord record_;
};

/// Reads a file from front to back, one chunk at a time, each compared with its checksum before it is handed out.
class CheckedFileReader {
 public:
  /// Throws Error{data} if the file is missing or has another size than the record says.
  CheckedFileReader(const std::filesystem::path& path, const FileRecord& record);

  bool at_end() const { return position_ == record_.size_bytes; }

  /// Where in the file the next chunk begins.
  std::uint64_t position() const { return position_; }

  /// The next chunk; valid until the next call. Throws Error{data} that names file and byte range if the checksum
  /// differs, Error{io} if the disk cannot be read.
  std::string_view next();

 private:
  std::filesystem::path path_;
  FileRecord record_;
  FileDescriptor file_;
  std::vector<char> chunk_;
  std::uint64_t position_ = 0;
};

}  // namespace assay
