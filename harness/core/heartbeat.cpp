#include "harness/core/heartbeat.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "harness/core/files.h"

namespace assay {

Heartbeat::Heartbeat(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file) throw_errno("open", path);
  // Not a sparse file: a beat on a full disk would be a SIGBUS.
  errno = ::posix_fallocate(file.get(), 0, sizeof(Shared));
  if (errno != 0) throw_errno("posix_fallocate", path);
  void* mapped = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) throw_errno("mmap", path);
  shared_ = static_cast<Shared*>(mapped);
}

Heartbeat::~Heartbeat() { ::munmap(shared_, sizeof(Shared)); }

void Heartbeat::beat(std::int64_t step, Phase phase) {
  shared_->step.store(step, std::memory_order_relaxed);
  shared_->phase.store(static_cast<std::int64_t>(phase), std::memory_order_relaxed);
  shared_->num_beats.fetch_add(1, std::memory_order_release);
}

Heartbeat::State Heartbeat::read() const {
  State state;
  state.num_beats = shared_->num_beats.load(std::memory_order_acquire);
  state.step = shared_->step.load(std::memory_order_relaxed);
  state.phase = static_cast<Phase>(shared_->phase.load(std::memory_order_relaxed));
  return state;
}

}  // namespace assay
