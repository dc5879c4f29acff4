// PyTorch's own memory viewer reads what `assay replay --output` writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_program.h"

namespace assay {
namespace {

using testing::HasSubstr;

const std::string kView = R"(
import pickle, sys
from torch.cuda import _memory_viz as viz
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
print(viz.segsum(data))
print(viz.trace(data))
for page in viz.trace_plot(data), viz.trace_plot(data, plot_segments=True), viz.segment_plot(data):
    print("page of", len(page) > len(pickle.dumps(data)), "MemoryViz.js" in page)
print(len(viz.filter_alloc_free_pairs(data)["device_traces"][0]), "left")
)";

std::string seen(const std::string& trace) {
  TemporaryFolder folder;
  const auto output = folder.path / "out";
  const auto replayed = run_program(
      ASSAY_BINARY_DIR "/assay",
      {"replay", ASSAY_SOURCE_DIR "/tests/data/memory/traces/train/" + trace + ".trace.gz", "--output", output});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  const auto viewed = run_program(ASSAY_PEER_PYTHON, {"-c", kView, output / "memory_snapshot.pickle"}, 100);
  EXPECT_EQ(viewed.exit_code, 0) << viewed.err;
  return viewed.out;
}

// Figures from tests/data/memory/traces/train/index.csv. Of a block that stays the alloc is left, and each segment's
// event.
TEST(MemoryViz, ShowsSegmentsAndTrace) {
  const auto out = seen("fsdp_14_gpt2");
  EXPECT_THAT(out, HasSubstr("segments: 138\ntotal_reserved: 9.7GiB"));
  EXPECT_THAT(out, HasSubstr("7481 entries"));
  EXPECT_THAT(out, HasSubstr("page of True True\npage of True True\npage of True True\n"));
  EXPECT_THAT(out, HasSubstr("\n" + std::to_string(2845 - 2248 + 139 + 1) + " left"));
}

TEST(MemoryViz, ShowsExpandableSegments) {
  const auto out = seen("fsdp_14_gpt2_expandable");
  EXPECT_THAT(out, HasSubstr("segments: 4\ntotal_reserved: 8.9GiB"));
  EXPECT_THAT(out, HasSubstr("7471 entries"));
  EXPECT_THAT(out, HasSubstr("'action': 'segment_map'"));
  EXPECT_THAT(out, HasSubstr("'action': 'segment_unmap'"));
}

}  // namespace
}  // namespace assay
