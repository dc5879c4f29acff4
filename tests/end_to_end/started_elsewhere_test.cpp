// assay-rank started by others than assay train: by assay launch, and by the real torchrun where there is one.
#include <gmock/gmock.h>

#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

class StartedElsewhere : public EndToEnd {
 protected:
  void expect_as_assay_train(const ProgramResult& result) {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    train("straight");
    expect_same_training(job("straight"), job("run"), 2);
    EXPECT_EQ(last_event(job("run"), 1, "run")["world_size"], 2);
  }
};

TEST_F(StartedElsewhere, ByAssayLaunch) {
  expect_as_assay_train(run_program(
      program("assay"),
      {"launch", "--nproc-per-node", "2", "--standalone", "--", program("assay-rank"), recipe, "--output", run("run")},
      kLongest));
}

// The folder is as that of assay train, so that a report says the same of it.
TEST_F(StartedElsewhere, AReportCanBeMadeOfIt) {
  const auto ranks = run_program(program("assay"),
                                 {"launch", "--nproc-per-node", "2", "--standalone", "--", program("assay-rank"),
                                  recipe, "parallel.nproc_per_node=1", "--output", run("run")},
                                 kLongest);
  ASSERT_EQ(ranks.exit_code, 0) << ranks.err;
  train("straight");
  std::map<std::string, std::string> status[2];
  for (const bool straight : {false, true}) {
    const auto folder_of_run = run(straight ? "straight" : "run");
    const auto result = assay({"report", folder_of_run, "--json"});
    const auto report = parse_json(result.out, "stdout");
    EXPECT_TRUE(report["throughput"]["tokens_per_second"].is_number()) << result.err;
    for (const auto& check : report["checks"]) status[straight][check["check"]] = check["status"];
    EXPECT_TRUE(std::filesystem::exists(folder_of_run / "checkpoints/step_00000020/manifest.json"));
  }
  EXPECT_FALSE(status[0].empty());
  EXPECT_EQ(status[0], status[1]);
  EXPECT_EQ(parse_json(read_text_file(job("run") / "job.json"), "job.json")["world_size"], 2);
}

// As assay train: the newest unfinished run of the same recipe, whatever its name, and never one that has ended.
TEST_F(StartedElsewhere, WithoutAnOutputTheUnfinishedRunGoesOn) {
  namespace fs = std::filesystem;
  const auto runs = folder.path / "runs";
  const auto start = [&](const Words& more = {}) {
    const auto result = run_program(program("assay-rank"), Words{recipe, "parallel.nproc_per_node=1"} + more, kLongest,
                                    {.environment = {}, .folder = folder.path.string()});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  const auto num_runs = [&] { return std::distance(fs::directory_iterator(runs), fs::directory_iterator()); };
  start();
  ASSERT_EQ(num_runs(), 1);
  const auto ended = runs / "zzz";
  fs::rename(fs::directory_iterator(runs)->path(), ended);
  const auto unfinished = runs / "another-name";
  fs::copy(ended, unfinished, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove(unfinished / "SHA256SUMS");
  fs::remove_all(unfinished / "jobs/train-1/checkpoints/step_00000020");

  start({"name=renamed"});
  EXPECT_EQ(num_runs(), 2);
  const auto resumed = last_event(unfinished / "jobs/train-1", 0, "run");
  EXPECT_EQ(resumed["attempt"], 2);
  EXPECT_THAT(resumed["resumed_from"].dump(),
              testing::HasSubstr("another-name/jobs/train-1/checkpoints/step_00000010"));
  EXPECT_EQ(last_event(ended / "jobs/train-1", 0, "run")["attempt"], 1);
  EXPECT_TRUE(fs::exists(unfinished / "SHA256SUMS"));

  start();
  EXPECT_EQ(num_runs(), 3) << "both others have ended";
  start({"--output", unfinished});
  EXPECT_EQ(last_event(unfinished / "jobs/train-1", 0, "run")["attempt"], 2) << "there was nothing to do";
}

// A list is one argument, commas and all.
TEST_F(StartedElsewhere, AListAsAnOverride) {
  const auto result = run_program(
      program("assay-rank"),
      {recipe, "parallel.nproc_per_node=1", "train.max_steps=1", "optimizer.betas=[0.8, 0.99]", "--output", run("run")},
      kLongest);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto manifest = read_text_file(job("run") / "checkpoints/step_00000001/manifest.json");
  EXPECT_EQ(parse_json(manifest, "manifest")["recipe"]["optimizer"]["betas"], (Json{0.8, 0.99}));
}

#ifdef ASSAY_PEER_PYTHON
TEST_F(StartedElsewhere, ByTorchrun) {
  expect_as_assay_train(run_program(ASSAY_PEER_PYTHON,
                                    {"-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node",
                                     "2", "--max-restarts", "3", program("assay-rank"), recipe, "--output", run("run")},
                                    kLongest));
}

// The exit code of a mistake reaches the user through torchrun too, with the message of the rank.
TEST_F(StartedElsewhere, ByTorchrunWithAMistake) {
  const auto result = run_program(ASSAY_PEER_PYTHON,
                                  {"-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node",
                                   "2", program("assay-rank"), recipe, "train.max_stepz=3", "--output", run("run")},
                                  kLongest);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, testing::HasSubstr("train.max_stepz"));
  EXPECT_FALSE(std::filesystem::exists(run("run")));
}
#endif

}  // namespace
}  // namespace assay
