#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/memory/allocator_trace.h"
#include "harness/memory/packed_file.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kTrain = ASSAY_SOURCE_DIR "/tests/data/memory/traces/train/";

/// What a text is refused with.
std::string refusal(const std::string& text) {
  try {
    parse_text_trace(text, "t");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "accepted";
}

TEST(TextTrace, AMistakeIsNamedWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"A 100 512 0\nF 100\nF 100\n", "t:3: the block at 100 is freed twice, first in line 2"},
      {"A 100 512 0\nF 200\n", "t:2: a free of 200, where no block was ever allocated"},
      {"A 100 512 0\nQ 100\nQ 100\n", "t:3: the block at 100 is freed twice"},
      {"A 100 512 0\nA 100 512 0\n", "t:2: a block at 100 is in use since line 1"},
      {"Z 100 512 0\n", "t:1: \"Z 100 512 0\" is no line of an allocator trace"},
      {"\x7f"
       "ELF\x02\x01",
       "t:1: \"?ELF??\" is no line of an allocator trace"},
      {"hello\n", "t:1: \"hello\" is no line of an allocator trace"},
      {"A 100 5x2 0\n", "t:1: the size \"5x2\" is no number"},
      {"A zz 512 0\n", "t:1: the address \"zz\" is no number in hexadecimal"},
      {"A 100 -512 0\n", "t:1: the size -512 is out of range"},
      {"A 100 0 0\n", "t:1: a size of 0 bytes"},
      {"A 100 9000000000000 0\n", "t:1: the size 9000000000000 is out of range"},
      {"A 100 99999999999999999999 0\n", "t:1: the size 99999999999999999999 is out of range"},
      {"A fffffffffffffffff 1 0\n", "t:1: the address fffffffffffffffff is out of range"},
      {"A 100 512\n", "t:1: a line A has 3 values behind the letter"},
      {"A 100 512 0 1\n", "t:1: a line A has 3 values behind the letter"},
      {"A 100  512 0\n", "t:1: the size \"\" is no number"},
      {"S 0 2097152 0\nS 200 2097152 0\n", "t:2: the segment at 200 overlaps one that is there"},
      {"X 0 2097152 0\n", "t:1: no segment of 2097152 bytes is at 0"},
      {"S 0 2097152 0\nX 0 512 0\n", "t:2: no segment of 512 bytes is at 0"},
      {"M 0 2097152 0\nU 0 4194304 0\n", "t:2: no segment of 4194304 bytes is at 0"},
      {"A 100 512 0\nI 0 2097152 0 small\n", "t:2: lines I and L come first"},
      {"I 0 2097152 0 tiny\n", "t:1: the pool is \"tiny\""},
      {"I 0 2097152 0 small\nL 3000000 512 512\n", "t:2: the block at 3000000 lies in no segment"},
      {"I 0 2097152 0 small\nL 0 512 513\n", "t:2: the block holds less than was requested"},
      {"I 0 2097152 0 small\nL 0 1024 512\nL 200 512 512\nA 900 1 0\n",
       "t:3: the block at 200 overlaps the one before it"},
      {"S 0 2097152 0\n", "t:2: the segments at the end (lines G) hold 0 bytes, the events leave 2097152"},
      {"S 0 2097152 0\nG 0 2097152 0 small 0 0 0\nB 0 512 inactive 0\n",
       "t:4: the blocks (lines B) of the segment at 0 do not fill it; the trace was cut"},
      {"S 0 2097152 0\nG 0 2097152 0 small 0 0 0\nB 200 512 inactive 0\n", "t:3: the block at 200 should begin at 0"},
      {"S 0 2097152 0\nG 0 2097152 0 small 0 0 0\nB 0 2097153 inactive 0\n", "t:3: the block ends behind its segment"},
      {"S 0 2097152 0\nG 0 2097152 0 small 0 0 0\nB 0 2097152 sleepy 0\n", "t:3: the block's state is \"sleepy\""},
      {"B 0 512 inactive 0\n", "t:1: a line B without its segment"},
      {"# allocs=2\nA 100 512 0\n", "t:3: the header says allocs=2, the lines say 1; the trace was cut or changed"},
      {"# events=3\nA 100 512 0\nF 100\nQ 100\n", "t:4: the block at 100 is freed twice, first in line 3"},
      {"# frees=x\n", "t:1: frees \"x\" is no number"},
      {"# alloc_conf=max_split_size_mb:1\n", "t:1: alloc_conf: max_split_size_mb:1 is given"},
      {"# alloc_conf=roundup_power2_divisions:3\n", "t:1: alloc_conf: roundup_power2_divisions:3 is given"},
      {"# alloc_conf=expandable_segments:yes\n", "t:1: alloc_conf: expandable_segments:yes is given"},
  };
  for (const auto& [text, message] : cases) EXPECT_THAT(refusal(text), StartsWith(message)) << text;
}

TEST(TextTrace, SettingsComeFromTheHeader) {
  const auto trace = parse_text_trace(
      "# alloc_conf=max_split_size_mb:64,expandable_segments:True,roundup_power2_divisions:8,"
      "garbage_collection_threshold:0.8,pinned_num_register_threads:2,backend:native\n",
      "t");
  EXPECT_EQ(trace.settings.max_split_size_bytes, std::int64_t{64} << 20);
  EXPECT_TRUE(trace.settings.expandable_segments);
  EXPECT_EQ(trace.settings.roundup_power2_divisions, 8);
  EXPECT_EQ(trace.settings.garbage_collection_threshold, 0.8);
  EXPECT_TRUE(trace.notes.empty());
  const auto odd =
      parse_text_trace("# alloc_conf=roundup_power2_divisions:[256:1,>:4],large_segment_size_mb:40\n", "t");
  EXPECT_THAT(odd.notes, testing::ElementsAre(HasSubstr("roundup_power2_divisions:[256:1,>:4]"),
                                              HasSubstr("large_segment_size_mb:40")));
}

// Pages that are mapped behind those of the start belong to the same area, also to that of small requests.
TEST(TextTrace, MappedPagesJoinThoseOfTheStart) {
  EXPECT_EQ(refusal("# expandable=1\nI 200000 2097152 0 small\nM 400000 2097152 0\nU 200000 4194304 0\n"), "accepted");
  EXPECT_EQ(refusal("# expandable=1\nI 200000 20971520 0 large\nM 1600000 20971520 0\nU 200000 41943040 0\n"),
            "accepted");
}

TEST(TextTrace, ADelayedFreeCountsAsTwoEventsToo) {
  const auto trace = parse_text_trace("# events=3\n# frees=1\nA 100 512 0\nQ 100\nF 100\n", "t");
  EXPECT_EQ(trace.num_events, 3);
  ASSERT_EQ(trace.events.size(), 3U);
  EXPECT_EQ(trace.events[1].action, TraceEvent::Action::begin_free);
  EXPECT_EQ(trace.events[2].action, TraceEvent::Action::free);
  EXPECT_EQ(parse_text_trace("# events=2\n# frees=0\nA 100 512 0\nQ 100\n", "t").num_events, 2);
}

/// Wherever a recording is cut between two lines, it is refused: the end of the file says what should be in it.
TEST(TextTrace, ACutTraceIsRefused) {
  const auto text = read_packed_file(kTrain + "train_05_tiny.trace.gz", 1 << 24);
  ASSERT_EQ(refusal(text), "accepted");
  const auto lines = split_lines(text);
  std::string cut;
  int refused = 0;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    cut += lines[i] + "\n";
    if (i % 19 != 0 && i + 2 != lines.size()) continue;
    ++refused;
    if (cut.find("\nA ") == std::string::npos) continue;  // only the header so far
    EXPECT_THAT(refusal(cut), testing::MatchesRegex("t:[0-9]+: .*")) << i;
    EXPECT_THAT(refusal(cut), HasSubstr("t:" + std::to_string(i + 2) + ": ")) << i;
  }
  EXPECT_GT(refused, 100);
}

TEST(PackedFile, CutAndDamagedGzipIsRefused) {
  const auto path = kTrain + "train_05_tiny.trace.gz";
  const MappedFile file(path);
  const std::string packed(file.bytes());
  const auto whole = unpack_gzip(packed, "f", 1 << 24);
  EXPECT_EQ(unpack_gzip(whole, "f", 1 << 24), whole);
  EXPECT_EQ(unpack_gzip(packed + packed, "f", 1 << 24), whole + whole);
  const auto message = [](const std::string& bytes, std::size_t max_bytes) -> std::string {
    try {
      unpack_gzip(bytes, "f", max_bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.what();
    }
    return "accepted";
  };
  for (std::size_t size = 2; size < packed.size(); size += 97)
    EXPECT_THAT(message(packed.substr(0, size), 1 << 24), HasSubstr("f: the gzip data end early, after")) << size;
  auto damaged = packed;
  damaged[packed.size() / 2] = static_cast<char>(damaged[packed.size() / 2] ^ 0x40);
  EXPECT_THAT(message(damaged, 1 << 24), HasSubstr("f: the gzip data are damaged"));
  EXPECT_THAT(message(packed, 1000), HasSubstr("f: holds more than 1000 B"));
  EXPECT_THAT(message(whole, 1000), HasSubstr("f: holds more than 1000 B"));
}

TEST(PackedFile, PlainAndPackedTracesAreEqual) {
  TemporaryFolder folder;
  const auto path = folder.path / "plain.trace";
  std::ofstream(path) << read_packed_file(kTrain + "train_05_tiny.trace.gz", 1 << 24);
  const auto plain = read_allocator_trace(path);
  const auto packed = read_allocator_trace(kTrain + "train_05_tiny.trace.gz");
  EXPECT_EQ(plain.events.size(), packed.events.size());
  EXPECT_EQ(plain.num_events, 2993);
}

TEST(PackedFile, MissingAndEmptyFilesAreRefused) {
  TemporaryFolder folder;
  EXPECT_THROW(read_allocator_trace(folder.path / "none"), Error);
  std::ofstream(folder.path / "empty").flush();
  try {
    read_allocator_trace(folder.path / "empty");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the file is empty"));
  }
}

}  // namespace
}  // namespace assay
