#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "harness/launch/rendezvous.h"
#include "harness/train/dry_run.h"
#include "tests/support/trainer_run.h"

namespace assay {

inline std::string text_of(const AllocationEvent& event) {
  std::ostringstream text;
  text << event.bytes << " " << name_of(event.category) << " " << name_of(event.phase);
  return text.str();
}

/// Names the first difference with what surrounds it.
inline std::string first_difference(const std::vector<AllocationEvent>& dry, const std::vector<AllocationEvent>& run) {
  std::size_t i = 0;
  while (i < std::min(dry.size(), run.size()) && dry[i] == run[i]) ++i;
  std::ostringstream text;
  text << "dry run " << dry.size() << " events, run " << run.size() << "; first difference at " << i << "\n";
  for (std::size_t j = i < 4 ? 0 : i - 4; j < i + 6; ++j) {
    text << j << ": dry " << (j < dry.size() ? text_of(dry[j]) : "-") << " | run "
         << (j < run.size() ? text_of(run[j]) : "-") << "\n";
  }
  return text.str();
}

/// Three steps on every rank for real and as a dry run: the same allocation events, and so the same peaks.
inline void expect_dry_run_equals_run(const Recipe& recipe, const ModelConfig& config, int world_size) {
  install_tracking_allocators();
  std::mutex mutex;
  run_trainers(
      recipe, config, world_size, find_free_port(),
      [&](TestRank rank) {
        for (int step = 0; step < 3; ++step) rank.trainer.step();
        const std::lock_guard lock(mutex);
        const auto dry = dry_run(recipe, config, rank.rank, world_size, 3, true);
        EXPECT_TRUE(dry->events() == rank.ledger.events()) << first_difference(dry->events(), rank.ledger.events());
        EXPECT_EQ(dry->peak_bytes(), rank.ledger.peak_bytes());
        EXPECT_EQ(dry->allocator().statistics().reserved.peak, rank.ledger.allocator().statistics().reserved.peak);
        EXPECT_EQ(dry->peak_by_category(), rank.ledger.peak_by_category());
        EXPECT_EQ(dry->peak_by_phase(), rank.ledger.peak_by_phase());
        EXPECT_GT(rank.ledger.events().size(), 100U);
      },
      /*record_events=*/true);
}

}  // namespace assay
