// Snapshots made by PyTorch 2.11 (tests/data/memory/make_snapshot.py), and those that we write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/memory/pickle_writer.h"
#include "harness/memory/replay.h"

namespace assay {
namespace {

using testing::HasSubstr;
using Action = TraceEvent::Action;

const std::string kData = ASSAY_SOURCE_DIR "/tests/data/memory/";

class RealSnapshot : public testing::TestWithParam<std::string> {
 protected:
  AllocatorTrace trace() const { return read_allocator_trace(kData + "snapshot_" + GetParam() + ".pickle.gz"); }
  std::int64_t said(const std::string& key) const {
    const auto path = kData + "snapshot_" + GetParam() + ".json";
    return parse_json(read_text_file(path), path)[key].get<std::int64_t>();
  }
  std::int64_t said(const std::string& figure, const std::string& when) const {
    return said(figure + "_bytes.all." + when);
  }
};

TEST_P(RealSnapshot, ReplaysToPyTorchsOwnStatistics) {
  const auto recorded = trace();
  EXPECT_THAT(recorded.notes, testing::IsEmpty());
  const auto result = replay(recorded, {recorded.settings, true});
  EXPECT_EQ(result.first_difference, "");
  const auto& figures = result.statistics;
  for (const auto& [name, figure] : {std::pair{"allocated", figures.allocated},
                                     {"active", figures.active},
                                     {"reserved", figures.reserved},
                                     {"requested", figures.requested}}) {
    EXPECT_EQ(figure.current, said(name, "current")) << name;
    EXPECT_EQ(figure.peak, said(name, "peak")) << name;
  }
  EXPECT_EQ(figures.inactive_split.current, said("inactive_split", "current"));
  EXPECT_EQ(figures.num_ooms, said("num_ooms"));
  EXPECT_EQ(result.segments.size(), recorded.end.size());
  // PyTorch's statistics count no segments that are expandable.
  EXPECT_EQ(recorded.settings.expandable_segments ? 0 : static_cast<std::int64_t>(result.segments.size()),
            said("segment.all.current"));
}

/// The state at the start was not recorded: it must lead to the same end, and to no block that nothing gave back.
TEST_P(RealSnapshot, WhatWasAliveAtTheStartIsDerived) {
  const auto recorded = trace();
  std::int64_t at_start = 0;
  for (const auto& segment : recorded.start) at_start += segment.bytes;
  EXPECT_EQ(at_start > 0, GetParam() == "late");
}

INSTANTIATE_TEST_SUITE_P(All, RealSnapshot, testing::Values("small", "late", "expandable", "oom"),
                         [](const auto& name) { return name.param; });

std::string refusal(const std::string& bytes) {
  try {
    parse_memory_snapshot(bytes, "s");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "accepted";
}

/// One segment of 2 MiB with a block of 512 bytes at its start, and the given events.
struct Event {
  std::string action;
  std::int64_t address;
  std::int64_t bytes;
};
std::string snapshot_of(const std::vector<Event>& events, std::int64_t block_bytes = 512,
                        std::int64_t requested_bytes = 500) {
  PickleWriter pickle;
  const auto set = [&](const char* key, std::int64_t value) {
    pickle.text(key);
    pickle.integer(value);
  };
  pickle.begin_dict();
  pickle.text("segments");
  pickle.begin_list();
  pickle.begin_dict();
  for (const auto& [key, value] :
       {std::pair<const char*, std::int64_t>{"device", 0}, {"address", 4096}, {"total_size", 2097152}, {"stream", 0}})
    set(key, value);
  pickle.text("segment_type");
  pickle.text("small");
  pickle.text("blocks");
  pickle.begin_list();
  for (const bool used : {true, false}) {
    pickle.begin_dict();
    set("size", used ? block_bytes : 2097152 - 512);
    set("requested_size", requested_bytes);
    pickle.text("state");
    pickle.text(used ? "active_allocated" : "inactive");
    pickle.end();
  }
  pickle.end();
  pickle.end();
  pickle.end();
  pickle.text("device_traces");
  pickle.begin_list();
  pickle.begin_list();
  for (const auto& event : events) {
    pickle.begin_dict();
    pickle.text("action");
    pickle.text(event.action);
    set("addr", event.address);
    set("size", event.bytes);
    set("stream", 0);
    pickle.end();
  }
  pickle.end();
  pickle.end();
  pickle.end();
  return pickle.finish();
}

TEST(Snapshot, ContradictionsAreNamedWithTheirByte) {
  EXPECT_EQ(refusal(snapshot_of({})), "accepted");
  EXPECT_EQ(refusal(snapshot_of({{"free_requested", 8192, 100}, {"free_completed", 8192, 100}})), "accepted");
  // Sizes that no rounding known here gives.
  EXPECT_EQ(refusal(snapshot_of({{"free_completed", 4608, 100}, {"free_completed", 4864, 100}})), "accepted");
  const std::vector<std::pair<std::string, std::string>> cases{
      {snapshot_of({{"free_completed", 8192, 100}, {"free_completed", 8192, 100}}), "this block is freed twice"},
      {snapshot_of({{"free_requested", 8192, 100}}), "this block should be waiting"},
      {snapshot_of({{"alloc", 4096, 500}, {"alloc", 4096, 500}}), "this block is allocated again without a free"},
      {snapshot_of({{"free_completed", 64, 100}}), "this block lies in no segment"},
      {snapshot_of({{"free_completed", 4104, 100}}), "this block reaches into the next one"},
      {snapshot_of({{"segment_alloc", 0, 2097152}}), "this segment is missing at the end"},
      {snapshot_of({{"segment_free", 4096, 2097152}}), "this segment overlaps another one"},
      {snapshot_of({{"alloc", 4096, -1}}), "size -1 is out of range"},
      {snapshot_of({{"alloc", -1, 500}}), "addr -1 is out of range"},
      {snapshot_of({}, 1024), "this block ends behind its segment"},
      {snapshot_of({}, 511, 1), "the blocks of this segment do not fill it"},
      {snapshot_of({}, 512, 513), "requested_size 513 is out of range"},
      {"\x80\x02].", "a memory snapshot is a dict"},
      {"\x80\x02}.", "the key device_traces is missing"},
  };
  for (const auto& [bytes, message] : cases)
    EXPECT_THAT(refusal(bytes), testing::AllOf(testing::MatchesRegex("s: byte [0-9]+: .*"), HasSubstr(message)));
  EXPECT_THAT(parse_memory_snapshot(snapshot_of({{"dance", 1, 1}}), "s").notes,
              testing::Contains("1 events of kind dance are passed over"));
}

/// An allocator with all that a history can hold; `events` is how many of them are kept.
struct Filled {
  explicit Filled(std::size_t events, const AllocatorSettings& settings = {}) : history(events), model(settings) {
    model.set_segment_listener([this](const SegmentEvent& event) { history.add(event, model.statistics(), 0); });
    const auto note = [&](AllocationHistory::Action action, std::int64_t address, std::int64_t bytes) {
      const auto label = history.label("backward: _scaled_dot_product_flash_attention, model.layers.3");
      history.add({action, label, address, bytes, 0, 0, model.statistics().allocated.current,
                   model.statistics().reserved.current});
    };
    std::vector<AllocatorModel::BlockId> blocks;
    const std::vector<std::int64_t> sizes{100, 5'000'000, 700, 30'000'000, 1'100'000, 64, 12'000'000, 3'000'000};
    for (const auto bytes : sizes) {
      blocks.push_back(*model.allocate(bytes));
      note(AllocationHistory::Action::allocate, model.address(blocks.back()), bytes);
    }
    const auto free = [&](std::size_t index) {
      const auto address = model.address(blocks[index]);
      model.free(blocks[index]);
      note(AllocationHistory::Action::free, address, sizes[index]);
    };
    free(3);
    free(1);
    model.empty_cache();
    blocks.push_back(*model.allocate(2'000'000));
    note(AllocationHistory::Action::allocate, model.address(blocks.back()), 2'000'000);
    model.begin_free(blocks[0]);
    note(AllocationHistory::Action::begin_free, model.address(blocks[0]), sizes[0]);
    model.begin_free(blocks[2]);
    note(AllocationHistory::Action::begin_free, model.address(blocks[2]), sizes[2]);
    note(AllocationHistory::Action::out_of_memory, 12345, 99'000'000);
    note(AllocationHistory::Action::end_free, model.address(blocks[0]), sizes[0]);
    model.free(blocks[0]);
  }

  AllocationHistory history;
  AllocatorModel model;
};

TEST(OwnSnapshot, IsReadBack) {
  for (const bool expandable : {false, true}) {
    AllocatorSettings settings;
    settings.expandable_segments = expandable;
    const Filled filled(1000, settings);
    const auto pickle = memory_snapshot_pickle(filled.model.segments(), filled.history, settings);
    const auto trace = parse_memory_snapshot(pickle, "own");
    EXPECT_TRUE(trace.notes.empty());
    EXPECT_TRUE(trace.start.empty());
    EXPECT_EQ(trace.settings.expandable_segments, expandable);
    const auto result = replay(trace, {trace.settings, true});
    EXPECT_EQ(result.first_difference, "");
    EXPECT_EQ(result.statistics.num_ooms, 1);
    EXPECT_EQ(result.statistics.allocated.peak, filled.model.statistics().allocated.peak);
    EXPECT_EQ(result.statistics.allocated.current, filled.model.statistics().allocated.current);
    EXPECT_EQ(result.statistics.active.current, filled.model.statistics().active.current);
    EXPECT_EQ(result.statistics.reserved.peak, filled.model.statistics().reserved.peak);
    EXPECT_EQ(result.statistics.requested.current, filled.model.statistics().requested.current);
  }
}

/// The ring forgets the oldest; what they did follows from the segments.
TEST(OwnSnapshot, OfAFullRingLeadsToTheSameEnd) {
  const Filled whole(1000);
  for (std::size_t kept = 1; kept < whole.history.size(); ++kept) {
    const Filled filled(kept);
    EXPECT_EQ(filled.history.size(), kept);
    EXPECT_EQ(filled.history.num_forgotten(), static_cast<std::int64_t>(whole.history.size() - kept));
    const auto pickle = memory_snapshot_pickle(filled.model.segments(), filled.history, {});
    const auto trace = parse_memory_snapshot(pickle, "own");
    const auto result = replay(trace, {trace.settings, true});
    EXPECT_EQ(result.first_difference, "") << kept;
    EXPECT_EQ(result.statistics.allocated.current, whole.model.statistics().allocated.current);
    EXPECT_EQ(result.statistics.reserved.current, whole.model.statistics().reserved.current);
  }
}

TEST(OwnSnapshot, ChromeTraceCountsTheSame) {
  const Filled filled(1000);
  const auto json = parse_json(chrome_trace(filled.history), "trace");
  std::int64_t peak = 0, last = -1, counters = 0, ooms = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "i") ++ooms;
    if (event["ph"] != "C") continue;
    ++counters;
    EXPECT_GE(event["ts"].get<std::int64_t>(), last);
    last = event["ts"].get<std::int64_t>();
    if (event["name"] == "reserved_bytes") peak = std::max(peak, event["args"]["bytes"].get<std::int64_t>());
  }
  EXPECT_EQ(peak, filled.model.statistics().reserved.peak);
  EXPECT_EQ(counters, 2 * static_cast<std::int64_t>(filled.history.size()));
  EXPECT_EQ(ooms, 1);
}

}  // namespace
}  // namespace assay
