#include "harness/launch/rank_log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

namespace assay {
namespace {

constexpr std::size_t kLongestLine = 65536;  // a longer one is shown in pieces
constexpr std::size_t kPipePiece = 4096;     // PIPE_BUF: what a pipe that is ready takes without blocking
constexpr int kChunksAtATime = 16;

}  // namespace

bool Terminal::flush() {
  std::size_t done = 0;
  while (!closed_ && done < waiting_.size()) {
    pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, 0) <= 0) break;
    const ssize_t written = ::write(fd_, waiting_.data() + done, std::min(kPipePiece, waiting_.size() - done));
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      closed_ = true;
    }
  }
  waiting_.erase(0, done);
  if (closed_) waiting_.clear();
  return waiting_.empty();
}

void Terminal::add_line(const std::string& prefix, std::string_view text) {
  waiting_.append(prefix).append(text).push_back('\n');
}

RankLog::RankLog(const std::filesystem::path& path, std::string prefix, Terminal* terminal)
    : prefix_(std::move(prefix)),
      terminal_(terminal),
      write_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
      read_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (!write_ || !read_ || ::fstat(read_.get(), &status) != 0) throw_errno("open", path);
  start_ = offset_ = status.st_size;
}

bool RankLog::show_new_lines() {
  if (terminal_ == nullptr) return true;
  std::array<char, 16384> chunk;
  for (int i = 0; i < kChunksAtATime; ++i) {
    if (!terminal_->flush()) return false;
    if (terminal_->is_closed()) return true;
    const ssize_t count = ::pread(read_.get(), chunk.data(), chunk.size(), offset_);
    if (count <= 0) return true;
    offset_ += count;
    show({chunk.data(), static_cast<std::size_t>(count)});
  }
  return false;
}

void RankLog::show(std::string_view chunk) {
  // A progress bar ends its lines with a carriage return.
  for (std::size_t end; (end = chunk.find_first_of("\r\n")) != std::string_view::npos; chunk.remove_prefix(end + 1)) {
    const bool second_half = end == 0 && partial_.empty() && after_return_ && chunk[0] == '\n';
    if (!second_half) terminal_->add_line(prefix_, partial_.append(chunk.substr(0, end)));
    after_return_ = chunk[end] == '\r';
    partial_.clear();
  }
  partial_.append(chunk);
  if (partial_.size() >= kLongestLine) {
    terminal_->add_line(prefix_, partial_);
    partial_.clear();
    after_return_ = false;
  }
}

void RankLog::show_rest() {
  if (terminal_ != nullptr && !partial_.empty()) terminal_->add_line(prefix_, partial_);
  partial_.clear();
}

std::string RankLog::last_lines(int count) const {
  struct stat status {};
  if (::fstat(read_.get(), &status) != 0) return {};
  const std::int64_t from = std::max<std::int64_t>(start_, status.st_size - 4096);
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(0, status.st_size - from)), '\0');
  const ssize_t read = ::pread(read_.get(), text.data(), text.size(), from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read)));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  std::size_t begin = text.size();
  for (int i = 0; i < count && begin != std::string::npos && begin > 0; ++i) begin = text.rfind('\n', begin - 1);
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

}  // namespace assay
