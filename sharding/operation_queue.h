#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

namespace assay {

/// One thread that runs operations in the order in which they are pushed. After one has thrown, every later one is left
/// out and its future throws the same error.
class OperationQueue {
 public:
  OperationQueue();
  /// Blocks until all that was pushed has run or failed.
  ~OperationQueue();
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  /// Does not block. The future throws what the operation throws.
  std::future<void> push(std::function<void()> operation);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> waiting_;
  bool closing_ = false;
  std::exception_ptr failure_;  // the thread's own
  std::thread thread_;
};

}  // namespace assay
