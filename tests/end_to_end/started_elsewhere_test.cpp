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
