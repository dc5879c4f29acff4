#include <gtest/gtest.h>
#include <signal.h>

#include "harness/launch/rank_shim.h"

int main(int argc, char** argv) {
  if (const auto exit_code = assay::run_rank_shim_if_asked(argc, argv)) return *exit_code;
  ::signal(SIGHUP, SIG_DFL);  // also under nohup: a test sends it to a launcher
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
