// Files of a run folder that are read before it goes on, damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/acceptance/jobs.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/recipe/load_recipe.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DamagedState : public testing::Test {
 protected:
  DamagedState() { make_folders(job / "events"); }

  /// What is said when the job is read.
  std::string said() const {
    try {
      read_job(job);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.what();
    }
  }

  const TemporaryFolder folder;
  const std::filesystem::path job = folder.path / "jobs/train-1";
  const Recipe recipe = load_recipe("recipes/tiny_cpu.yaml", {}, {}).recipe;
  const JobRequest request{"train-1", "train", recipe, recipe, "", Json::object()};
};

TEST_F(DamagedState, AJobFileIsNamedAndWrittenAgainFromTheRecipe) {
  mend_job_file(folder.path, request);
  EXPECT_FALSE(std::filesystem::exists(job / "job.json")) << "a job that was never started has none";
  for (const char* content : {"", "{\"kind\": \"tra", "[1]", "{}", "{\"world_size\": \"2\"}", "{\"world_size\": 1e9}",
                              "{\"world_size\": -2}"}) {
    write_file_durably(job / "job.json", content);
    EXPECT_THAT(said(),
                AllOf(HasSubstr((job / "job.json").string() + " is damaged"), HasSubstr("put back a whole copy")))
        << content;
    mend_job_file(folder.path, request);
    EXPECT_EQ(read_job(job).world_size(), 2) << content;
    EXPECT_EQ(read_job(job).job["kind"], "train");
  }
  const auto whole = read_text_file(job / "job.json");
  mend_job_file(folder.path, {"train-1", "collective", recipe, recipe, "", Json::object()});
  EXPECT_EQ(read_text_file(job / "job.json"), whole) << "a whole one was touched";
}

TEST_F(DamagedState, ALineOfEventsIsNamedWithTheNextStep) {
  write_file_durably(job / "job.json", "{\"world_size\": 2}");
  const std::string good = "{\"kind\":\"run\",\"rank\":1,\"step\":0,\"attempt\":3}\n";
  for (const char* name : {"launcher.jsonl", "rank_00001.jsonl"}) {
    const auto file = job / "events" / name;
    for (const char* line : {"{\"kind\":\"st", "[]", "3", "{\"kind\":7,\"rank\":1,\"step\":0,\"attempt\":1}",
                             "{\"kind\":\"run\",\"rank\":1,\"step\":0,\"attempt\":\"1\"}"}) {
      write_file_durably(file, good + line + "\n" + good);
      EXPECT_THAT(said(), AllOf(HasSubstr(file.string() + ":2 is damaged"), HasSubstr("remove that line"))) << line;
    }
    write_file_durably(file, good + good);
    EXPECT_EQ(read_job(job).last_attempt(), 3);
  }
}

TEST_F(DamagedState, WhatDescribesTheMachineIsNamed) {
  write_file_durably(folder.path / "machine.json", "{\"host\": ");
  try {
    read_run(folder.path, recipe);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder.path / "machine.json").string() + " is damaged"));
  }
}

}  // namespace
}  // namespace assay
