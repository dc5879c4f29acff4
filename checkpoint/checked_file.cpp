#include "checkpoint/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "harness/core/error.h"

namespace assay {
namespace {

// Small enough to be still in cache when the kernel copies what was just hashed.
constexpr std::uint64_t kSliceBytes = std::uint64_t{256} << 10U;

void read_all(int fd, char* data, std::size_t size, const std::filesystem::path& path) {
  while (size > 0) {
    const ssize_t count = ::read(fd, data, size);
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_errno("read", path);
    }
    if (count == 0) throw Error(ErrorKind::data, path.string() + " became shorter while it was read");
    data += count;
    size -= static_cast<std::size_t>(count);
  }
}

}  // namespace

CheckedFileWriter::CheckedFileWriter(const std::filesystem::path& path, std::function<void()> on_chunk)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)),
      on_chunk_(std::move(on_chunk)) {
  if (!file_) throw_errno("open", path);
  record_.name = path.filename().string();
}

void CheckedFileWriter::write(const void* data, std::uint64_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const auto slice = std::min({size, kSliceBytes, chunk_bytes - record_.size_bytes % chunk_bytes});
    hash_.add(next, slice);
    write_all(file_.get(), next, slice, path_);
    record_.size_bytes += slice;
    if (record_.size_bytes % chunk_bytes == 0) end_chunk();
    next += slice;
    size -= slice;
  }
}

void CheckedFileWriter::end_chunk() {
  record_.chunk_checksums.push_back(hash_.text());
  hash_.reset();
  if (on_chunk_) on_chunk_();
}

FileRecord CheckedFileWriter::finish() {
  if (record_.size_bytes % chunk_bytes != 0) end_chunk();
  if (::fsync(file_.get()) != 0) throw_errno("fsync", path_);
  file_.close();
  return record_;
}

CheckedFileReader::CheckedFileReader(const std::filesystem::path& path, const FileRecord& record)
    : path_(path), record_(record), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!file_) {
    if (errno == ENOENT) throw Error(ErrorKind::data, "there is no file " + path.string());
    throw_errno("open", path);
  }
  struct stat facts {};
  if (::fstat(file_.get(), &facts) != 0) throw_errno("stat", path);
  if (static_cast<std::uint64_t>(facts.st_size) != record.size_bytes) {
    throw Error(ErrorKind::data, path.string() + " has " + std::to_string(facts.st_size) + " bytes, " +
                                     std::to_string(record.size_bytes) + " were written");
  }
  ASSAY_CHECK(record.chunk_bytes > 0);
  // The file is there in full, so the buffer is bounded by what is on the disk.
  chunk_.resize(std::min(record.chunk_bytes, record.size_bytes));
}

std::string_view CheckedFileReader::next() {
  const auto size = std::min(record_.chunk_bytes, record_.size_bytes - position_);
  read_all(file_.get(), chunk_.data(), size, path_);
  const std::string_view chunk(chunk_.data(), size);
  if (xxh3_of(chunk) != record_.chunk_checksums.at(position_ / record_.chunk_bytes)) {
    throw Error(ErrorKind::data, path_.string() + ": bytes " + std::to_string(position_) + " to " +
                                     std::to_string(position_ + size) + " are not those that were written (checksum)");
  }
  position_ += size;
  return chunk;
}

}  // namespace assay
