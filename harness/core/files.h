#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/core/error.h"

namespace assay {

/// An owned file descriptor; closed by the destructor, which ignores errors (use close() where they matter).
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  /// Throws Error{io} if the file could not be closed cleanly.
  void close();

 private:
  int fd_ = -1;
};

/// A whole file mapped read-only into memory. An empty file has a null pointer and size 0.
class MappedFile {
 public:
  /// Throws Error{data} if the path is missing or no regular file, Error{io} if it cannot be mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::string_view bytes() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Opens /dev/null in place of standard streams that are closed: else the next file to be opened takes their number,
/// and messages are written into it. First in main.
void open_missing_standard_streams();

/// Throws Error{io} naming the call, the path and what errno says.
[[noreturn]] void throw_errno(const std::string& call, const std::filesystem::path& path);

/// What std::filesystem says about a path: Error{data} if the path itself cannot be (a loop of links, too long a name),
/// else Error{io}.
Error error_of(const std::filesystem::filesystem_error& error);

/// Throws Error{data} that begins with `what`, the key or option that names the path, if there is nothing to be found.
void require_path(const std::string& what, const std::filesystem::path& path);

/// The whole file. Throws Error{data} if it does not exist, Error{io} otherwise.
std::string read_text_file(const std::filesystem::path& path);

/// Writes path.tmp, fsyncs, renames it to path, fsyncs the folder: afterwards the old or the new content is there,
/// whole.
void write_file_durably(const std::filesystem::path& path, std::string_view content);

/// A file that comes with the program ("recipes/tiny_cpu.yaml"): in this working folder, as in a clone, or else where
/// it was installed, <folder of the executable>/../share/assay. The path as it was given if it is in neither.
std::filesystem::path find_shipped(const std::filesystem::path& path);

/// Writes all bytes, going on after short writes and EINTR. Throws Error{io}.
void write_all(int fd, const void* data, std::size_t size, const std::filesystem::path& path);

/// fsync of a folder, so that names in it survive a power cut. Throws Error{io}.
void sync_folder(const std::filesystem::path& folder);

/// Creates the folder and its parents. Throws Error{io}.
void make_folders(const std::filesystem::path& folder);

/// Lower-case SHA-256 of a file's content in hexadecimal. Throws Error{io}.
std::string sha256_of_file(const std::filesystem::path& path);

/// Lower-case SHA-256 of the bytes in hexadecimal.
std::string sha256_of(std::string_view bytes);

/// Splits at every newline; a last line without a newline counts too.
std::vector<std::string> split_lines(std::string_view text);

}  // namespace assay
