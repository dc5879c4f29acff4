#include "sharding/operation_queue.h"

#include <utility>

namespace assay {

OperationQueue::OperationQueue() : thread_([this] { run(); }) {}

OperationQueue::~OperationQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::future<void> OperationQueue::push(std::function<void()> operation) {
  std::packaged_task<void()> task([this, operation = std::move(operation)] {
    if (failure_) std::rethrow_exception(failure_);
    try {
      operation();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  });
  auto done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return done;
}

void OperationQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    auto task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace assay
