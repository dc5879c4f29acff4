#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "harness/core/json.h"
#include "tests/support/run_program.h"

namespace assay {
namespace {

using testing::HasSubstr;

const std::string kData = ASSAY_SOURCE_DIR "/tests/data/memory/";
const std::string kTrace = kData + "traces/train/train_12_gpt2.trace.gz";

ProgramResult replay_program(std::vector<std::string> words) {
  words.insert(words.begin(), "replay");
  return run_program(ASSAY_BINARY_DIR "/assay", words);
}

Json replay_json(std::vector<std::string> words) {
  words.emplace_back("--json");
  const auto result = replay_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "stdout");
}

TEST(Replay, PrintsTheContractsFields) {
  const auto json = replay_json({kTrace});
  // index.csv beside the trace
  EXPECT_EQ(json["events"], 5605);
  EXPECT_EQ(json["peak_allocated_bytes"], 9220087808);
  EXPECT_EQ(json["peak_reserved_bytes"], 10701766656);
  EXPECT_EQ(json["final_allocated_bytes"], 1832168448);
  EXPECT_EQ(json["final_reserved_bytes"], 10701766656);
  EXPECT_EQ(json["num_segments"], 138);
  EXPECT_EQ(json["num_ooms"], 0);
  EXPECT_GT(json["largest_free_block_bytes"], 0);
  EXPECT_EQ(json["meets_recording"], true);
}

TEST(Replay, PrintsATable) {
  const auto result = replay_program({kTrace});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("peak reserved"));
  EXPECT_THAT(result.out, HasSubstr("10701766656"));
  EXPECT_THAT(result.out, HasSubstr("the model meets the recording"));
}

TEST(Replay, OtherSettingsAndCapacity) {
  // The same program was recorded with expandable segments too: 10076815360 bytes.
  const auto expandable = replay_json({kTrace, "allocator.expandable_segments=true"});
  EXPECT_EQ(expandable["peak_reserved_bytes"], 10076815360);
  EXPECT_EQ(expandable["meets_recording"], nullptr);
  const auto small = replay_json({kTrace, "device_memory=8GiB"});
  EXPECT_GT(small["num_ooms"], 0);
  EXPECT_LE(small["peak_reserved_bytes"], std::int64_t{8} << 30);
  EXPECT_GT(small["first_oom"]["line"], 1);
  EXPECT_THAT(replay_program({kTrace, "device_memory=8GiB"}).out, HasSubstr("first out of memory: event "));
}

TEST(Replay, WritesFilesForViewers) {
  TemporaryFolder folder;
  const auto output = folder.path / "out";
  EXPECT_EQ(replay_program({kTrace, "--output", output}).exit_code, 0);
  const auto again = replay_json({output / "memory_snapshot.pickle"});
  EXPECT_EQ(again["events"], 5605);
  EXPECT_EQ(again["peak_reserved_bytes"], 10701766656);
  EXPECT_EQ(again["meets_recording"], true);
  const auto trace = parse_json(read_text_file(output / "trace.json"), "trace.json");
  EXPECT_GT(trace["traceEvents"].size(), 5605U);
}

TEST(Replay, ReadsSnapshots) {
  const auto json = replay_json({kData + "snapshot_oom.pickle.gz"});
  EXPECT_EQ(json["num_ooms"], 1);
  EXPECT_GT(json["first_oom"]["byte"], 1);
  EXPECT_EQ(json["meets_recording"], true);
}

TEST(Replay, BadFilesEndWithTwoAndTheirLine) {
  TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder.path / name) << text;
    return (folder.path / name).string();
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{write("unknown", "A 100 512 0\nF 200\n")}, "unknown:2: a free of 200"},
      {{write("cut", "# allocs=2\nA 100 512 0\n")}, "cut:3: the header says allocs=2"},
      {{write("text.pickle", "not a pickle")}, "text.pickle: byte 0: this is no pickle"},
      {{write("run.pickle",
              "\x80\x02"
              "cos\nsystem\n.")},
       "run.pickle: byte 2: opcode 63 would import"},
      {{(folder.path / "none").string()}, "none"},
      {{kTrace, "device_memory=8G"}, "device_memory: "},
      {{kTrace, "allocator.expandable_segment=true"}, "did you mean allocator.expandable_segments?"},
      {{kTrace, "allocator.roundup_power2_divisions=3"}, "3 is no power of two"},
      {{kTrace, "train.max_steps=3"}, "train.max_steps: unknown key"},
      {{kTrace, "model.config.x=3"}, "replay takes device_memory and the keys of the section allocator"},
      {{kTrace, kTrace}, "is a second argument"},
      {{}, "replay needs TRACE"},
  };
  for (const auto& [words, message] : cases) {
    const auto result = replay_program(words);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  }
}

}  // namespace
}  // namespace assay
