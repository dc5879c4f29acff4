#include "harness/memory/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace assay {
namespace {

using Bytes = MemoryLedger::Bytes;
constexpr std::int64_t kB = kBlockBytes;

// Bytes by category in blocks of 512: parameters, gradients, optimizer, activations, communication, temporaries.
Bytes blocks(std::int64_t parameters, std::int64_t gradients, std::int64_t optimizer, std::int64_t activations,
             std::int64_t communication, std::int64_t temporaries) {
  return {parameters * kB, gradients * kB, optimizer * kB, activations * kB, communication * kB, temporaries * kB};
}

std::int64_t sum(const Bytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

MemoryLedger::Block allocate_as(MemoryLedger& ledger, MemoryCategory category, std::int64_t bytes) {
  const MemoryScope scope(category);
  return *ledger.allocate(bytes);
}

TEST(MemoryLedger, BlocksAreRoundedUpAndCountedUnderTheirScope) {
  MemoryLedger ledger;
  const auto parameters = allocate_as(ledger, MemoryCategory::parameters, 1);
  allocate_as(ledger, MemoryCategory::gradients, 512);
  const auto optimizer = allocate_as(ledger, MemoryCategory::optimizer, 513);
  const auto loose = *ledger.allocate(100);
  EXPECT_EQ(ledger.allocated_bytes(), 5 * kB);
  EXPECT_EQ(ledger.by_category(), blocks(1, 1, 2, 0, 0, 1));
  ledger.release(optimizer);
  ledger.release(loose);
  ledger.release(parameters);
  EXPECT_EQ(ledger.allocated_bytes(), kB);
  EXPECT_EQ(ledger.by_category(), blocks(0, 1, 0, 0, 0, 0));
  EXPECT_EQ(ledger.peak_bytes(), 5 * kB);
  EXPECT_EQ(ledger.peak_by_category(), blocks(1, 1, 2, 0, 0, 1));
  EXPECT_EQ(ledger.num_events(), 7);
}

TEST(MemoryLedger, TheInnermostScopeCounts) {
  MemoryLedger ledger;
  const MemoryScope outer(MemoryCategory::optimizer);
  allocate_as(ledger, MemoryCategory::communication, 1);
  ledger.allocate(1);
  EXPECT_EQ(ledger.by_category(), blocks(0, 0, 1, 0, 1, 0));
}

// One forward: a block that is freed within it is a temporary, one that outlives it an activation, also at a peak that
// lies inside the forward, when that was not yet known.
TEST(MemoryLedger, APeakInsideForwardIsAttributedAfterwards) {
  MemoryLedger ledger;
  allocate_as(ledger, MemoryCategory::parameters, 10 * kB);
  ledger.set_phase(Phase::forward);
  const auto kept = *ledger.allocate(3 * kB);
  const auto scratch = *ledger.allocate(4 * kB);
  const auto scoped = allocate_as(ledger, MemoryCategory::communication, kB);  // peak: 18
  ledger.release(scratch);
  const auto late = *ledger.allocate(2 * kB);  // survives, but came after the peak
  ledger.set_phase(Phase::backward);
  EXPECT_EQ(ledger.peak_bytes(), 18 * kB);
  EXPECT_EQ(ledger.peak_by_category(), blocks(10, 0, 0, 3, 1, 4));
  EXPECT_EQ(ledger.by_category(), blocks(10, 0, 0, 5, 1, 0));
  const auto gradient = *ledger.allocate(kB);  // a temporary: allocated outside of forward
  EXPECT_EQ(ledger.by_category(), blocks(10, 0, 0, 5, 1, 1));
  for (const auto& block : {kept, late, scoped, gradient}) ledger.release(block);
  EXPECT_EQ(ledger.by_category(), blocks(10, 0, 0, 0, 0, 0));
  EXPECT_EQ(ledger.peak_by_category(), blocks(10, 0, 0, 3, 1, 4));
}

// The peak moves from the first forward to the second; the first one's activations that are still alive stay
// activations.
TEST(MemoryLedger, APeakAcrossMicroSteps) {
  MemoryLedger ledger;
  ledger.set_phase(Phase::forward);
  const auto first = *ledger.allocate(4 * kB);
  const auto first_scratch = *ledger.allocate(2 * kB);  // peak so far: 6
  ledger.release(first_scratch);
  ledger.set_phase(Phase::backward);
  EXPECT_EQ(ledger.peak_by_category(), blocks(0, 0, 0, 4, 0, 2));

  ledger.set_phase(Phase::forward);  // 4 still alive
  const auto second = *ledger.allocate(kB);
  ledger.release(first);                             // an activation of the earlier forward, freed within this one
  const auto large = *ledger.allocate(7 * kB);       // peak: 8
  const auto filler = *ledger.allocate(0 * kB + 1);  // peak: 9
  ledger.release(large);
  ledger.set_phase(Phase::backward);
  EXPECT_EQ(ledger.peak_bytes(), 9 * kB);
  EXPECT_EQ(ledger.peak_by_category(), blocks(0, 0, 0, 2, 0, 7));
  EXPECT_EQ(ledger.by_category(), blocks(0, 0, 0, 2, 0, 0));
  ledger.release(second);
  ledger.release(filler);
  EXPECT_EQ(ledger.by_category(), Bytes{});
}

// A peak in backward sees the forward's decision, with temporaries of its own.
TEST(MemoryLedger, APeakInBackward) {
  MemoryLedger ledger;
  ledger.set_phase(Phase::forward);
  const auto kept = *ledger.allocate(3 * kB);
  ledger.set_phase(Phase::backward);
  const auto gradient = *ledger.allocate(2 * kB);  // peak: 5
  ledger.release(kept);
  const auto next = *ledger.allocate(3 * kB);  // 5 again: the first one counts
  EXPECT_EQ(ledger.peak_by_category(), blocks(0, 0, 0, 3, 0, 2));
  ledger.release(gradient);
  ledger.release(next);
  EXPECT_EQ(ledger.allocated_bytes(), 0);
}

TEST(MemoryLedger, EveryPhaseHasItsPeak) {
  MemoryLedger ledger;
  const auto loaded = *ledger.allocate(3 * kB);
  ledger.set_phase(Phase::forward);
  const auto kept = *ledger.allocate(2 * kB);
  ledger.release(*ledger.allocate(4 * kB));
  ledger.set_phase(Phase::backward);  // begins with 5
  ledger.release(kept);
  ledger.set_phase(Phase::update);  // begins with 3
  ledger.release(loaded);
  ledger.set_phase(Phase::save);
  const auto& peaks = ledger.peak_by_phase();
  const auto peak = [&](Phase phase) { return peaks[static_cast<std::size_t>(phase)] / kB; };
  EXPECT_EQ(peak(Phase::load), 3);
  EXPECT_EQ(peak(Phase::forward), 9);
  EXPECT_EQ(peak(Phase::backward), 5);
  EXPECT_EQ(peak(Phase::update), 3);
  EXPECT_EQ(peak(Phase::save), 0);
  EXPECT_EQ(peak(Phase::restore), 0);
  EXPECT_EQ(peak(Phase::accumulate), 0);
}

// G01: a new interval begins with what is alive, not with nothing.
TEST(MemoryLedger, AnIntervalsPeakBeginsWithWhatIsAlive) {
  MemoryLedger ledger;
  const auto kept = *ledger.allocate(2 * kB);
  ledger.release(*ledger.allocate(5 * kB));
  EXPECT_EQ(ledger.take_interval_peak().allocated_bytes, 7 * kB);
  EXPECT_EQ(ledger.take_interval_peak().allocated_bytes, 2 * kB);
  ledger.release(kept);
  EXPECT_EQ(ledger.take_interval_peak().allocated_bytes, 2 * kB);
  EXPECT_EQ(ledger.take_interval_peak().allocated_bytes, 0);
  EXPECT_EQ(ledger.peak_bytes(), 7 * kB);
}

// The capacity holds for what is reserved: whole segments of 2 MiB for small requests.
TEST(MemoryLedger, TheCapacityCountsWholeSegments) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  AllocatorSettings settings;
  settings.capacity_bytes = 4 * kMiB;
  MemoryLedger ledger(settings);
  const auto first = ledger.allocate(1);
  EXPECT_TRUE(first);
  EXPECT_TRUE(ledger.allocate(2 * kMiB - kB - 1 - kMiB));
  EXPECT_TRUE(ledger.allocate(kMiB));
  EXPECT_EQ(ledger.take_interval_peak().reserved_bytes, 2 * kMiB);
  EXPECT_TRUE(ledger.allocate(kMiB));
  EXPECT_TRUE(ledger.allocate(kMiB));
  EXPECT_FALSE(ledger.allocate(1));
  EXPECT_EQ(ledger.num_events(), 5) << "a refused request is no event";
  EXPECT_EQ(ledger.take_interval_peak().reserved_bytes, 4 * kMiB);
  ledger.release(*first);
  EXPECT_TRUE(ledger.allocate(kB));
  EXPECT_FALSE(ledger.allocate(1));
}

TEST(MemoryLedger, OneRequestIsRefusedWhereItIsAskedTo) {
  MemoryLedger ledger;
  ledger.refuse_at(2);
  EXPECT_TRUE(ledger.allocate(1));
  EXPECT_TRUE(ledger.allocate(1));
  EXPECT_FALSE(ledger.allocate(1));
  EXPECT_TRUE(ledger.allocate(1));
}

TEST(MemoryLedger, RecordedEventsHaveTheirFinalCategories) {
  MemoryLedger ledger;
  ledger.allocate(1);  // before recording
  ledger.record_events(true);
  ledger.set_phase(Phase::forward);
  const auto kept = *ledger.allocate(1000);
  const auto scratch = *ledger.allocate(100);
  ledger.release(scratch);
  const auto reduced = allocate_as(ledger, MemoryCategory::communication, 7);
  ledger.set_phase(Phase::backward);
  ledger.release(kept);
  ledger.record_events(false);
  ledger.release(reduced);
  const std::vector<AllocationEvent> expected{
      {1000, MemoryCategory::activations, Phase::forward},   {100, MemoryCategory::temporaries, Phase::forward},
      {-100, MemoryCategory::temporaries, Phase::forward},   {7, MemoryCategory::communication, Phase::forward},
      {-1000, MemoryCategory::activations, Phase::backward},
  };
  EXPECT_EQ(ledger.events(), expected);
  EXPECT_EQ(ledger.num_events(), 7);
}

// Random sequences: the sums that the header promises, and everything at zero in the end.
// Of what was alive at the peak, not before and not after; alike blocks are one line.
TEST(MemoryLedger, TheLargestAtThePeakSayWhoMadeThem) {
  MemoryLedger ledger;
  ledger.record_events(true);
  ledger.set_operation("load");
  allocate_as(ledger, MemoryCategory::parameters, 6 * kB);
  ledger.set_phase(Phase::forward);
  ledger.set_operation("early");
  const auto early = *ledger.allocate(5 * kB);
  ledger.release(early);
  ledger.set_operation("mm");
  ledger.set_unit_names({"embedding", "model.layers.0"});
  ledger.set_unit(1);
  const auto first = *ledger.allocate(4 * kB);
  ledger.allocate(4 * kB);
  ledger.set_operation("scratch");
  const auto scratch = *ledger.allocate(kB);  // peak: 15
  ledger.release(scratch);
  ledger.set_operation("late");
  ledger.release(*ledger.allocate(kB));
  ledger.set_phase(Phase::backward);
  ledger.release(first);
  const auto largest = ledger.largest_at_peak();
  ASSERT_EQ(largest.size(), 3U);
  EXPECT_STREQ(largest[0].operation, "load");
  EXPECT_EQ(largest[0].unit, "");
  EXPECT_STREQ(largest[1].operation, "mm");
  EXPECT_EQ(largest[1].bytes, 4 * kB);
  EXPECT_EQ(largest[1].count, 2);
  EXPECT_EQ(largest[1].unit, "model.layers.0");
  EXPECT_EQ(largest[1].phase, Phase::forward);
  EXPECT_STREQ(largest[2].operation, "scratch");
  EXPECT_EQ(largest[2].category, MemoryCategory::temporaries);
  EXPECT_EQ(ledger.largest_at_peak(1).size(), 1U);
}

TEST(MemoryLedger, CategoriesSumToTheTotalInEverySequence) {
  std::uint32_t state = 1;
  const auto random = [&state](std::uint32_t bound) {
    state = state * 1664525U + 1013904223U;
    return (state >> 8U) % bound;
  };
  for (int round = 0; round < 50; ++round) {
    MemoryLedger ledger;
    std::vector<MemoryLedger::Block> alive;
    std::int64_t total = 0;
    std::int64_t peak = 0;
    const auto size = [](const MemoryLedger::Block& block) { return (block.bytes + kB - 1) / kB * kB; };
    for (int i = 0; i < 400; ++i) {
      const auto action = random(10);
      if (action < 1) {
        ledger.set_phase(static_cast<Phase>(random(static_cast<std::uint32_t>(kPhaseNames.size()))));
      } else if (action < 6 || alive.empty()) {
        const auto bytes = static_cast<std::int64_t>(random(3000) + 1);
        alive.push_back(random(3) == 0 ? allocate_as(ledger, static_cast<MemoryCategory>(random(6)), bytes)
                                       : *ledger.allocate(bytes));
        total += size(alive.back());
        peak = std::max(peak, total);
      } else {
        std::swap(alive[random(static_cast<std::uint32_t>(alive.size()))], alive.back());
        total -= size(alive.back());
        ledger.release(alive.back());
        alive.pop_back();
      }
      ASSERT_EQ(ledger.allocated_bytes(), total);
      ASSERT_EQ(ledger.peak_bytes(), peak);
      if (ledger.phase() == Phase::forward) continue;
      ASSERT_EQ(sum(ledger.by_category()), total);
      ASSERT_EQ(sum(ledger.peak_by_category()), peak);
    }
    for (const auto& block : alive) ledger.release(block);
    ledger.set_phase(Phase::save);
    ASSERT_EQ(ledger.by_category(), Bytes{});
    ASSERT_EQ(ledger.allocated_bytes(), 0);
  }
}

}  // namespace
}  // namespace assay
