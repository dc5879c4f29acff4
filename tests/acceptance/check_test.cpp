#include "harness/acceptance/check.h"

#include <gtest/gtest.h>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

std::vector<Result> with(const std::vector<Status>& statuses) {
  std::vector<Result> results;
  for (const auto status : statuses) {
    results.emplace_back();
    results.back().status = status;
  }
  return results;
}

TEST(Verdict, FailBeforeIncompleteBeforePass) {
  using enum Status;
  struct Row {
    std::vector<Status> statuses;
    const char* name;
    int exit_code;
  };
  for (const auto& row : std::vector<Row>{{{pass}, "accepted", 0},
                                          {{pass, skip}, "accepted", 0},
                                          {{pass, incomplete}, "incomplete", 3},
                                          {{pass, fail}, "rejected", 1},
                                          {{incomplete, fail, pass}, "rejected", 1},
                                          {{skip}, "incomplete", 3},
                                          {{}, "incomplete", 3}}) {
    const auto verdict = verdict_of(with(row.statuses));
    EXPECT_EQ(verdict.name, row.name);
    EXPECT_EQ(verdict.exit_code, row.exit_code);
  }
  EXPECT_EQ(verdict_of(with({pass, skip, skip})).num_skip, 2);
}

TEST(Results, ALineHoldsEveryFieldOfTheContractAndReadsBack) {
  const TemporaryFolder folder;
  Result result;
  result.check = "train.resume";
  result.stage = "train";
  result.status = Status::fail;
  result.measured = 3;
  result.limit = 0;
  result.unit = "steps";
  result.reason = "a \"quote\" and a |\n";
  result.ranks = {0, 7};
  result.evidence = "jobs/train-1/events";
  result.seconds = 1.5;
  result.healthy = false;
  result.action = Action::isolate;
  result.margin = -0.5;
  write_results(folder.path / "results.jsonl", {result, Result{}});
  const auto lines = split_lines(read_text_file(folder.path / "results.jsonl"));
  ASSERT_EQ(lines.size(), 2U);
  const auto json = parse_json(lines[0], "line");
  for (const char* key : {"check", "stage", "status", "measured", "limit", "unit", "reason", "ranks", "evidence",
                          "seconds", "ran", "healthy", "action"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["status"], "fail");
  EXPECT_EQ(json["action"], "isolate");
  const auto read = read_results(folder.path / "results.jsonl");
  EXPECT_EQ(result_to_json(read[0]), result_to_json(result));
  EXPECT_FALSE(read[1].healthy);
}

TEST(Results, WritingReplacesTheFileAsAWhole) {
  const TemporaryFolder folder;
  write_results(folder.path / "results.jsonl", with({Status::pass, Status::pass}));
  write_results(folder.path / "results.jsonl", with({Status::skip}));
  EXPECT_EQ(read_results(folder.path / "results.jsonl").size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(folder.path / "results.jsonl.tmp"));
  EXPECT_TRUE(read_results(folder.path / "none.jsonl").empty());
}

TEST(Results, ADamagedLineIsRefusedByItsPlace) {
  const TemporaryFolder folder;
  write_file_durably(folder.path / "results.jsonl", "{\"check\": \"x\"}\n");
  try {
    read_results(folder.path / "results.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_NE(std::string(error.what()).find("results.jsonl:1"), std::string::npos);
  }
}

}  // namespace
}  // namespace assay
