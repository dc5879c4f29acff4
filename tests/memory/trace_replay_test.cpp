// 26 recordings of PyTorch's own allocator: the model must do what it did, request by request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "harness/memory/replay.h"
#include "harness/memory/trace_start.h"

namespace assay {
namespace {

using Row = std::map<std::string, std::string>;

const std::filesystem::path kFolder = std::filesystem::path(ASSAY_SOURCE_DIR) / "tests/data/memory/traces";

/// The cells of a line of CSV with quotes.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char letter : line) {
    if (letter == '"') {
      quoted = !quoted;
    } else if (letter == ',' && !quoted) {
      cells.emplace_back();
    } else if (letter != '\r') {
      cells.back() += letter;
    }
  }
  return cells;
}

std::vector<Row> index_of(const std::string& folder) {
  std::ifstream file(kFolder / folder / "index.csv");
  std::string line;
  std::getline(file, line);
  const auto names = cells_of(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const auto cells = cells_of(line);
    Row row{{"folder", folder}};
    for (std::size_t i = 0; i < cells.size(); ++i) row[names[i]] = cells[i];
    rows.push_back(row);
  }
  return rows;
}

std::vector<Row> all_rows() {
  auto rows = index_of("real");
  const auto train = index_of("train");
  rows.insert(rows.end(), train.begin(), train.end());
  return rows;
}

AllocatorTrace trace_of(const Row& row) {
  return read_allocator_trace(kFolder / row.at("folder") / (row.at("name") + ".trace.gz"));
}

std::int64_t number(const Row& row, const std::string& key) { return std::stoll(row.at(key)); }

/// What both kinds of index call by different names; 0 where it was not recorded.
std::int64_t allocated_peak(const Row& row) {
  const auto& text = row.contains("allocated_peak") ? row.at("allocated_peak") : row.at("allocated_peak_from_stats");
  return text.empty() ? 0 : std::stoll(text);
}

class Recording : public testing::TestWithParam<Row> {};

TEST_P(Recording, IsMetAddressByAddress) {
  const auto& row = GetParam();
  const auto trace = trace_of(row);
  const auto result = replay(trace, {trace.settings, true});
  EXPECT_EQ(result.first_difference, "");
  EXPECT_EQ(trace.num_events, number(row, "events"));
  const auto& figures = result.statistics;
  EXPECT_EQ(figures.reserved.peak, number(row, "reserved_peak"));
  EXPECT_EQ(figures.reserved.current, number(row, "reserved_end"));
  EXPECT_EQ(figures.allocated.current, number(row, "allocated_end"));
  EXPECT_EQ(figures.requested.peak, number(row, "requested_peak"));
  if (const auto peak = allocated_peak(row)) {
    EXPECT_EQ(figures.allocated.peak, peak);
  }
  EXPECT_EQ(figures.num_ooms, 0);
  EXPECT_EQ(result.num_left_out, 0);
}

/// A device that is just large enough changes nothing; the same requests in less than what is allocated cannot fit.
TEST_P(Recording, FitsWhatItTookAndNotLess) {
  const auto trace = trace_of(GetParam());
  auto settings = trace.settings;
  settings.capacity_bytes = number(GetParam(), "reserved_peak");
  const auto same = replay(trace, {settings, false});
  EXPECT_EQ(same.statistics.num_ooms, 0);
  EXPECT_EQ(same.statistics.num_alloc_retries, 0);
  EXPECT_EQ(same.statistics.reserved.peak, number(GetParam(), "reserved_peak"));
  EXPECT_EQ(same.statistics.reserved.current, number(GetParam(), "reserved_end"));
  settings.capacity_bytes = number(GetParam(), "requested_peak") - 1;
  std::int64_t at_start = 0;
  for (const auto& segment : trace.start) at_start += segment.bytes;
  if (at_start > settings.capacity_bytes) return;  // the recording began with more than that
  const auto small = replay(trace, {settings, false});
  EXPECT_GT(small.statistics.num_ooms, 0);
  EXPECT_LE(small.statistics.reserved.peak, settings.capacity_bytes);
  ASSERT_TRUE(small.first_oom);
  // Segments are up to 20 MiB larger than the request.
  EXPECT_GT(small.first_oom->bytes + small.first_oom->reserved_bytes + (20 << 20), settings.capacity_bytes);
}

/// Undoing the events from the end leads to the recorded start, block sizes included.
TEST_P(Recording, StartFollowsFromTheEnd) {
  auto trace = trace_of(GetParam());
  // Sizes of releases are not in the text format; a snapshot has them.
  std::map<std::int64_t, std::int64_t> requested;
  for (const auto& segment : trace.start) {
    for (const auto& block : segment.blocks) requested[block.address] = block.requested_bytes;
  }
  for (auto& event : trace.events) {
    if (event.action == TraceEvent::Action::allocate) requested[event.address] = event.bytes;
    if (event.action == TraceEvent::Action::free) event.bytes = requested.at(event.address);
  }
  // ... and a release is two events there.
  auto events = std::exchange(trace.events, {});
  for (const auto& event : events) {
    if (event.action == TraceEvent::Action::free) {
      trace.events.push_back(event);
      trace.events.back().action = TraceEvent::Action::begin_free;
    }
    trace.events.push_back(event);
  }
  const auto found = state_before(trace);
  ASSERT_EQ(found.size(), trace.start.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].address, trace.start[i].address);
    EXPECT_EQ(found[i].bytes, trace.start[i].bytes);
    EXPECT_EQ(found[i].small, trace.start[i].small);
    ASSERT_EQ(found[i].blocks.size(), trace.start[i].blocks.size());
    for (std::size_t j = 0; j < found[i].blocks.size(); ++j) {
      EXPECT_EQ(found[i].blocks[j].address, trace.start[i].blocks[j].address);
      EXPECT_EQ(found[i].blocks[j].bytes, trace.start[i].blocks[j].bytes) << found[i].blocks[j].address;
      EXPECT_EQ(found[i].blocks[j].requested_bytes, trace.start[i].blocks[j].requested_bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recording, testing::ValuesIn(all_rows()), [](const auto& row) {
  auto name = row.param.at("name");
  std::replace_if(
      name.begin(), name.end(), [](unsigned char letter) { return std::isalnum(letter) == 0; }, '_');
  return name;
});

TEST(Recordings, AreAllThere) { EXPECT_EQ(all_rows().size(), 26U); }

// What follows can be worked out by hand.

const std::string kGrows =
    "A 1000000 31457280 0\nF 1000000\nA 2000000 52428800 0\nF 2000000\nA 3000000 73400320 0\n";  // 30, 50, 70 MiB

AllocatorTrace without_segments(const std::string& events) { return parse_text_trace(events, "test"); }

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

TEST(OtherSettings, ExpandableSegmentsGrowInsteadOfLeavingHoles) {
  const auto trace = without_segments(kGrows);
  const auto plain = replay(trace, {{}, false});
  EXPECT_EQ(plain.statistics.reserved.peak, 150 * kMiB);
  EXPECT_EQ(plain.segments.size(), 3U);
  AllocatorSettings settings;
  settings.expandable_segments = true;
  const auto expandable = replay(trace, {settings, false});
  EXPECT_EQ(expandable.statistics.reserved.peak, 80 * kMiB);  // 70 MiB in pages of 20 MiB
  EXPECT_EQ(expandable.segments.size(), 1U);
  EXPECT_EQ(expandable.largest_free_block_bytes, 10 * kMiB);
}

TEST(OtherSettings, ASmallerDeviceReleasesThenFails) {
  const auto trace = without_segments(kGrows);
  AllocatorSettings settings;
  settings.capacity_bytes = 75 * kMiB;
  const auto retried = replay(trace, {settings, false});
  EXPECT_EQ(retried.statistics.num_alloc_retries, 2);  // 30 + 50 and 50 + 70 exceed 75
  EXPECT_EQ(retried.statistics.num_ooms, 0);
  EXPECT_EQ(retried.statistics.reserved.peak, 70 * kMiB);
  settings.capacity_bytes = 60 * kMiB;
  const auto failed = replay(trace, {settings, false});
  EXPECT_EQ(failed.statistics.num_ooms, 1);
  EXPECT_EQ(failed.num_left_out, 1);
  ASSERT_TRUE(failed.first_oom);
  EXPECT_EQ(failed.first_oom->event, 5);
  EXPECT_EQ(failed.first_oom->place, 5);
  EXPECT_EQ(failed.first_oom->bytes, 70 * kMiB);
  EXPECT_EQ(failed.first_oom->reserved_bytes, 0);
  EXPECT_EQ(failed.statistics.allocated.current, 0);
}

TEST(OtherSettings, TheReleaseOfWhatFailedIsLeftOutToo) {
  const auto trace = without_segments("A 1 31457280 0\nA 2 31457280 0\nF 2\nF 1\nA 2 1000 0\n");
  AllocatorSettings settings;
  settings.capacity_bytes = 40 * kMiB;
  const auto result = replay(trace, {settings, false});
  EXPECT_EQ(result.statistics.num_ooms, 1);
  EXPECT_EQ(result.statistics.allocated.current, 1024);
  EXPECT_EQ(result.statistics.allocated.peak, 30 * kMiB);
}

TEST(OtherSettings, ADifferenceIsSaidWithItsLine) {
  auto text = std::string("S 7f0000000000 2097152 0\nA 7f0000000000 512 0\nA 7f0000000400 512 0\n") +
              "G 7f0000000000 2097152 0 small 1024 1024 0\nB 7f0000000000 512 active_allocated 512\n" +
              "B 7f0000000200 512 inactive 0\nB 7f0000000400 512 active_allocated 512\n" +
              "B 7f0000000600 2095616 inactive 0\n";
  const auto trace = parse_text_trace(text, "test");
  EXPECT_THAT(replay(trace, {{}, true}).first_difference,
              testing::StartsWith("line 3: the recording has the block at"));
}

}  // namespace
}  // namespace assay
