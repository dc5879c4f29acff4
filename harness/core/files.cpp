#include "harness/core/files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include "harness/core/text.h"

namespace assay {
namespace {

struct Sha256 {
  Sha256() : context(EVP_MD_CTX_new(), &EVP_MD_CTX_free) { EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr); }
  void add(std::string_view bytes) { EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()); }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context.get(), digest.data(), &size);
    return hex_of({digest.data(), size});
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context;
};

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void FileDescriptor::close() {
  const int fd = release();
  if (fd >= 0 && ::close(fd) != 0) throw Error(ErrorKind::io, std::string("close: ") + std::strerror(errno));
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  // A named pipe is refused below; without O_NONBLOCK its opening would wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) throw Error(ErrorKind::data, "there is no file " + path.string());
    if (errno == ELOOP) throw Error(ErrorKind::data, path.string() + " is a symbolic link that leads to itself");
    throw_errno("open", path);
  }
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) throw_errno("stat", path);
  if (!S_ISREG(facts.st_mode)) throw Error(ErrorKind::data, path.string() + " is not a regular file");
  size_ = static_cast<std::size_t>(facts.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) throw_errno("mmap", path);
  data_ = static_cast<const char*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

void open_missing_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is this one: those below are open.
    if (::open("/dev/null", O_RDWR) != fd) std::abort();
  }
}

void throw_errno(const std::string& call, const std::filesystem::path& path) {
  const int code = errno;
  throw Error(ErrorKind::io, call + " " + path.string() + ": " + std::strerror(code));
}

Error error_of(const std::filesystem::filesystem_error& error) {
  const auto& code = error.code();
  const bool impossible = code == std::errc::too_many_symbolic_link_levels || code == std::errc::filename_too_long;
  return {impossible ? ErrorKind::data : ErrorKind::io, error.path1().string() + ": " + code.message()};
}

void require_path(const std::string& what, const std::filesystem::path& path) {
  std::error_code code;
  if (std::filesystem::exists(path, code)) return;
  throw Error(ErrorKind::data, what + (code ? ": " + path.string() + ": " + code.message()
                                            : ": there is no file or folder " + path.string()));
}

std::string read_text_file(const std::filesystem::path& path) { return std::string(MappedFile(path).bytes()); }

std::filesystem::path find_shipped(const std::filesystem::path& path) {
  if (std::filesystem::exists(path)) return path;
  const auto programs = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto installed = programs.parent_path() / "share" / "assay" / path;
  return std::filesystem::exists(installed) ? installed : path;
}

void write_all(int fd, const void* data, std::size_t size, const std::filesystem::path& path) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd, next, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      throw_errno("write", path);
    }
    next += written;
    size -= static_cast<std::size_t>(written);
  }
}

void write_file_durably(const std::filesystem::path& path, std::string_view content) {
  auto temporary = path;
  temporary += ".tmp";
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) throw_errno("open", temporary);
  write_all(file.get(), content.data(), content.size(), temporary);
  if (::fsync(file.get()) != 0) throw_errno("fsync", temporary);
  file.close();
  if (::rename(temporary.c_str(), path.c_str()) != 0) throw_errno("rename", path);
  sync_folder(path.has_parent_path() ? path.parent_path() : ".");
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) throw_errno("open", folder);
  if (::fsync(file.get()) != 0) throw_errno("fsync", folder);
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) throw Error(ErrorKind::io, "cannot create folder " + folder.string() + ": " + code.message());
}

std::string sha256_of(std::string_view bytes) {
  Sha256 digest;
  digest.add(bytes);
  return digest.hex();
}

std::string sha256_of_file(const std::filesystem::path& path) { return sha256_of(MappedFile(path).bytes()); }

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace assay
