#include "harness/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <locale>
#include <sstream>

#include "harness/core/files.h"
#include "tests/acceptance/synthetic_run.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

using testing::HasSubstr;

Json report_of(const RunRecord& run) { return make_report(run, evaluate_run(run)); }

/// Every null of the document must have a reason beside it; results say theirs in `reason`.
void expect_reasons(const Json& object, const std::string& where) {
  if (object.is_array()) {
    for (const auto& item : object) expect_reasons(item, where + "[]");
  }
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    if (key == "recipe" || key == "checks" || key == "machine") continue;
    if (value.is_null()) {
      EXPECT_TRUE(object.contains(key + "_reason")) << where << "." << key;
    } else {
      expect_reasons(value, where + "." + key);
    }
  }
}

TEST(Report, HasEveryFieldOfTheContractMeasured) {
  const auto report = report_of(passing_run());
  EXPECT_EQ(report["verdict"], "accepted");
  EXPECT_EQ(report["exit_code"], 0);
  for (const char* key : {"recipe", "checks", "memory", "throughput", "loss", "utilization", "checkpoint", "started",
                          "ended", "versions"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& row = report["memory"][static_cast<std::size_t>(rank)];
    EXPECT_EQ(row["rank"], rank);
    EXPECT_EQ(row["formula_bytes"], 1100);
    EXPECT_EQ(row["dry_run_allocated_bytes"], 1000);
    EXPECT_EQ(row["measured_allocated_bytes"], 1000);
    EXPECT_EQ(row["dry_run_reserved_bytes"], 1200);
    EXPECT_EQ(row["measured_reserved_bytes"], 1200);
    EXPECT_TRUE(row["device_used_bytes"].is_null());
    EXPECT_EQ(row["by_category"]["optimizer"], 500);
    EXPECT_EQ(row["by_phase"]["backward"], 1000);
  }
  const auto& speed = report["throughput"];
  EXPECT_EQ(speed["tokens_per_second"], 128.0);  // 128 tokens in the median second
  EXPECT_EQ(speed["tokens_per_second_per_gpu"], 64.0);
  EXPECT_EQ(speed["trained_tokens_per_second"], 120.0);
  // Steps 4 to 10 take a second each, and three saves two seconds each.
  EXPECT_DOUBLE_EQ(speed["net_tokens_per_second"].get<double>(), 7 * 128 / 13.0);
  EXPECT_EQ(speed["model_flops_per_token"], 6000);
  EXPECT_EQ(speed["flops_convention"], "6 per weight");
  EXPECT_TRUE(speed["mfu"].is_null());  // fault case J01: no peak is known, so there is no number
  EXPECT_EQ(speed["tokens_per_step"], (Json{{"slots", 128}, {"real", 124}, {"trained", 120}}));  // fault case J05
  EXPECT_EQ(speed["excluded_steps"], (Json{1, 2, 3}));
  EXPECT_EQ(report["loss"]["first"], 4.75);
  EXPECT_EQ(report["loss"]["last"], 2.5);
  EXPECT_EQ(report["loss"]["slope"], -0.25);
  EXPECT_EQ(report["utilization"][1]["compute_share"], 0.8);
  EXPECT_EQ(report["utilization"][1]["ceiling_fraction"], 0.5);
  EXPECT_EQ(report["checkpoint"]["save_seconds"], 2.0);
  EXPECT_EQ(report["checkpoint"]["bytes"], 1600);
  EXPECT_EQ(report["checkpoint"]["bytes_per_second"], 800.0);
  EXPECT_EQ(report["checkpoint"]["restore_seconds"], 0.25);
  EXPECT_EQ(report["checkpoint"]["resume_equal"], true);
  EXPECT_EQ(report["started"], "2026-01-01T00:00:01.000000Z");
  EXPECT_EQ(report["ended"], "2026-01-01T00:00:02.000000Z");
  EXPECT_EQ(report["versions"]["libtorch"], "2.11.0");
  expect_reasons(report, "report");
}

TEST(Report, OfARunThatNeverStartedSaysWhyForEveryNull) {
  auto run = passing_run();
  run.jobs.clear();
  run.estimate = nullptr;
  run.machine = nullptr;
  const auto report = report_of(run);
  EXPECT_EQ(report["verdict"], "incomplete");
  EXPECT_TRUE(report["throughput"]["tokens_per_second"].is_null());
  EXPECT_TRUE(report["checkpoint"]["resume_equal"].is_null());
  expect_reasons(report, "report");
  EXPECT_THAT(report_markdown(report), HasSubstr("# incomplete"));
}

TEST(Report, AnOutOfMemoryIsShownWithWhatIsKnownOfIt) {
  auto run = passing_run();
  auto& events = run.jobs["train-1"].ranks[1];
  events.push_back(event("error", 1, 3, 1, {{"error", "memory"}, {"memory", {{"phase", "backward"}}}}));
  events.push_back(event("error", 1, 3, 1, {{"error", "memory"}, {"memory", "damaged"}}));
  run.jobs["train-1"].remedies = {
      {"remedies", {{{"change", "a=1"}, {"peak_bytes", 512}, {"fits", true}, {"by", "dry run"}}}}};
  const auto report = make_report(run, evaluate_run(run));
  ASSERT_EQ(report["out_of_memory"].size(), 1U);
  EXPECT_EQ(report["out_of_memory"][0]["nearest_remedy"], "a=1 (512 B by dry run)");
  EXPECT_THAT(report_markdown(report), testing::HasSubstr("| train-1 | 1 | 3 | backward |"));
}

TEST(Report, NamesWorstMarginAndFailingRanksFirst) {
  auto run = passing_run();
  for (auto& event : run.jobs["twin-1"].ranks[1]) {
    if (event["kind"] == "end") event["compute_seconds"] = 40.0;
  }
  const auto report = report_of(run);
  EXPECT_EQ(report["verdict"], "rejected");
  EXPECT_EQ(report["failing_ranks"], Json::array({1}));
  EXPECT_EQ(report["worst_margin"]["check"], "utilization.compute_share_of_median");
  // Shares 0.8 and 0.2: median 0.5, ratio 0.4, limit 0.5: a fifth of the limit is missing.
  EXPECT_NEAR(report["worst_margin"]["margin"].get<double>(), -0.2, 1e-12);
  const auto text = report_markdown(report);
  EXPECT_LT(text.find("rejected"), text.find("## Baseline"));
  EXPECT_LT(text.find("Worst margin: -20.0 % at utilization.compute_share_of_median"), text.find("## Baseline"));
  EXPECT_THAT(text, HasSubstr("did not pass: 1.\n"));
}

TEST(Report, MarkdownHasTheBaselineAndTheThreeMemoryFiguresSideBySide) {
  auto run = passing_run();
  run.recipe.optimizer.moment_dtype = FloatType::fp32;
  const auto text = report_markdown(report_of(run));
  for (const char* part :
       {"| Sequence length | 16 |", "| Micro batch, accumulation, global batch | 2, 2, 8 |",
        "| Optimizer, moments, sharding | adamw, moments in fp32, strategy ddp |", "| Goal | must start |",
        "| 0 | 1.07 KiB | 1000 B | 1000 B |", "| 0 | optimizer | 500 B | 500 B |", "| 1 | backward | 1000 B | 1000 B |",
        "[jobs/train-1/events](jobs/train-1/events)"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Report, NonFiniteNumbersAndAwkwardTextsStayStrictJson) {  // fault case J11
  auto run = passing_run();
  run.recipe.name = "NaN \"quoted\" | \xC3\xA9\n";
  for_events(run.jobs["twin-1"], "step", [](Json& event) {
    if (event["step"] == 10) event["loss"] = std::numeric_limits<double>::quiet_NaN();
    if (event["step"] == 3) event["loss"] = -std::numeric_limits<double>::infinity();
  });
  for_events(run.jobs["twin-1"], "memory", [](Json& event) { event["measured_allocated_bytes"] = 9007199254740993; });
  // As the files would hold it: non-finite numbers are null there.
  for (auto& events : run.jobs["twin-1"].ranks) {
    for (auto& event : events) event = parse_json(dump_json(event), "event");
  }
  const TemporaryFolder folder;
  write_reports(folder.path, run, evaluate_run(run));
  const auto text = read_text_file(folder.path / "report.json");
  const auto report = parse_json(text, "report.json");  // refuses NaN and Infinity
  EXPECT_EQ(report["recipe"]["name"], run.recipe.name);
  EXPECT_TRUE(report["loss"]["last"].is_null());
  EXPECT_EQ(report["loss"]["last_reason"], "not a finite number");
  EXPECT_TRUE(report["loss"]["slope"].is_null());
  EXPECT_EQ(report["verdict"], "rejected");
  EXPECT_FALSE(std::filesystem::exists(folder.path / "report.json.tmp"));
  // A name cannot end a line or a cell of the Markdown.
  EXPECT_THAT(read_text_file(folder.path / "report.md"), HasSubstr("# rejected: NaN \"quoted\" \\| \xC3\xA9 \n"));
}

/// Numbers as several countries write them.
struct CommaNumbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Report, ALocaleChangesNoNumber) {  // fault case J11
  const auto expected = report_of(passing_run());
  const TemporaryFolder folder;
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaNumbers));
  std::ostringstream sample;
  sample << 1000.5;
  write_reports(folder.path, passing_run(), evaluate_run(passing_run()));
  std::locale::global(before);
  ASSERT_EQ(sample.str(), "1.000,5") << "the locale was in force";
  EXPECT_EQ(parse_json(read_text_file(folder.path / "report.json"), "report.json"), expected);
  EXPECT_EQ(read_text_file(folder.path / "report.md"), report_markdown(expected));
}

}  // namespace
}  // namespace assay
