// What is left behind when the device is too small for the plan.
#include <gmock/gmock.h>

#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OutOfMemory : public EndToEnd {
 protected:
  Json estimate(const Words& more) {
    const auto result = assay(Words{"estimate", recipe, "--json"} + more);
    return parse_json(result.out, "stdout");
  }
};

TEST_F(OutOfMemory, TheReportSaysWhereWhatForAndWhatWouldHaveFitted) {
  const Words plan{"train.micro_batch_size=64", "train.gradient_accumulation_steps=1"};
  const auto peak = estimate(plan)["dry_run"]["peak_allocated_bytes"].get<std::int64_t>();
  const auto capacity = peak / (2 << 20) * (2 << 20);  // less than what is allocated, so no cache can be given back
  const auto result = assay(command("train", "run", plan + Words{"device_memory=" + std::to_string(capacity)}));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("device memory is full"), HasSubstr("largest free block")));
  assay({"report", run("run").string()});  // of a training without the other stages: incomplete

  const auto report = parse_json(read_text_file(run("run") / "report.json"), "report.json");
  ASSERT_FALSE(report["out_of_memory"].empty());
  const auto& row = report["out_of_memory"][0];
  EXPECT_EQ(row["job"], "train-1");
  EXPECT_EQ(row["capacity_bytes"], capacity);
  EXPECT_GT(row["requested_bytes"].get<std::int64_t>(), 0);
  EXPECT_THAT(row["phase"].get<std::string>(), testing::AnyOf("forward", "backward", "update"));
  std::int64_t sum = 0;
  for (const auto& [category, bytes] : row["by_category"].items()) sum += bytes.get<std::int64_t>();
  EXPECT_EQ(sum, row["allocated_bytes"]);
  EXPECT_THAT(row["nearest_remedy"].get<std::string>(), HasSubstr("train.micro_batch_size=32"));
  EXPECT_THAT(read_text_file(run("run") / "report.md"), HasSubstr("## Out of device memory"));

  // The nearest remedy is one: the plan with it fits, by the dry run and by running.
  const Words remedy{"train.micro_batch_size=32", "train.gradient_accumulation_steps=2",
                     "device_memory=" + std::to_string(capacity), "train.max_steps=2"};
  EXPECT_EQ(estimate(remedy)["fits"], true);
  EXPECT_EQ(assay(command("train", "remedied", remedy)).exit_code, 0);

  const auto replayed = assay({"replay", (run("run") / "memory_snapshot.pickle").string(), "--json"});
  ASSERT_EQ(replayed.exit_code, 0) << replayed.err;
  const auto trace = parse_json(read_text_file(run("run") / "trace.json"), "trace.json");
  EXPECT_TRUE(trace.is_array() || trace["traceEvents"].is_array());
}

}  // namespace
}  // namespace assay
