#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/rank_group.h"

namespace assay {

/// Where the ranks of one test meet; they are threads.
class ThreadWorld {
 public:
  explicit ThreadWorld(int world_size) : texts_(static_cast<std::size_t>(world_size)) {}

  int world_size() const { return static_cast<int>(texts_.size()); }

  std::vector<std::string> all_gather(int rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<std::size_t>(rank)] = text;
    const auto round = round_;
    if (++arrived_ == world_size()) {
      arrived_ = 0;
      ++round_;
      gathered_ = texts_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return round_ != round; })) {
      throw Error(ErrorKind::communication, "a rank did not come");
    }
    // The next round cannot end before this rank has left with a copy of this one.
    return gathered_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
  std::vector<std::string> gathered_;
  int arrived_ = 0;
  long round_ = 0;
};

class ThreadGroup final : public RankGroup {
 public:
  ThreadGroup(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return world_.world_size(); }
  std::vector<std::string> all_gather(const std::string& text) override { return world_.all_gather(rank_, text); }

 private:
  ThreadWorld& world_;
  int rank_;
};

/// Runs `work` on `world_size` ranks at once. Returns the Error of each as "kind: message", "" for those that threw
/// none.
inline std::vector<std::string> run_ranks(int world_size, const std::function<void(RankGroup&)>& work) {
  ThreadWorld world(world_size);
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadGroup group(world, rank);
        work(group);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = std::string(name_of(error.kind())) + ": " + error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace assay
