// The search by trials, its ranks as threads of this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "harness/core/event.h"
#include "harness/launch/rendezvous.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/recipe/load_recipe.h"
#include "harness/train/dry_run.h"
#include "harness/train/job.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

constexpr std::int64_t kEnough = std::int64_t{1} << 40;

class FitTrials : public testing::Test {
 protected:
  static Recipe recipe(std::int64_t micro_batch_size) {
    Recipe recipe;
    recipe.name = "fit";
    recipe.model.path = ASSAY_SOURCE_DIR "/tests/data/models/llama_gqa";
    recipe.model.init = ModelInit::random;
    recipe.model.attention = AttentionChoice::flash;
    recipe.data.format = DataFormat::synthetic;
    recipe.data.sequence_length = 64;
    recipe.train.max_steps = 3;
    recipe.train.loss_chunk_tokens = 64;
    recipe.parallel.nproc_per_node = 2;
    recipe.parallel.strategy = StrategyName::fsdp;
    recipe.parallel.backend = BackendChoice::gloo;
    recipe.parallel.timeout_seconds = 100;  // nothing here may wait for it
    return with_overrides(recipe, {"train.micro_batch_size=" + std::to_string(micro_batch_size)});
  }

  static std::int64_t reserved_by(std::int64_t micro_batch_size) {
    install_tracking_allocators();
    const auto r = recipe(micro_batch_size);
    return dry_run(r, load_model_config(r.model.path), 0, 2)->allocator().statistics().reserved.peak;
  }

  /// The search over train.micro_batch_size by two ranks with these capacities.
  void search(std::int64_t start, std::vector<std::int64_t> capacities) {
    std::signal(SIGPIPE, SIG_IGN);  // as assay-rank does: a rank that is gone is an error of the others
    const auto socket = listen_on("127.0.0.1", 0);
    run_ranks(2, [&](int rank) {
      Job job;
      job.kind = "fit_trials";
      job.recipe = recipe(1);
      job.recipe.train.global_batch_size.reset();
      job.folder = folder_.path;
      job.options = {{"key", "train.micro_batch_size"},
                     {"step", 1},
                     {"low", 1},
                     {"high", 64},
                     {"start", start},
                     {"num_steps", 3},
                     {"smallest", 1},
                     {"capacity_bytes", capacities}};
      job.world.rank = job.world.local_rank = rank;
      job.world.world_size = job.world.local_world_size = 2;
      job.world.master_port = socket.port;
      if (rank == 0) job.world.listen_fd = ::dup(socket.fd.get());  // the store closes it
      EXPECT_EQ(run_fit_trials(job), exit_done);
    });
  }

  std::vector<Json> checks(int rank, const std::string& name) const {
    std::vector<Json> found;
    for (const auto& event : read_events(rank_event_file(folder_.path, rank))) {
      if (event["kind"] == "check" && event["name"] == name) found.push_back(event);
    }
    return found;
  }

  TemporaryFolder folder_;
};

// Rank 1 has less memory than rank 0, which never runs out by itself. Each trial that is too large ends at another
// place of load, forward or backward; every time both go on, and a normal step follows.
TEST_F(FitTrials, WhereOneRankAloneIsOutOfMemoryAllGoOn) {
  constexpr std::int64_t kFits = 5;
  const auto start_time = std::chrono::steady_clock::now();
  search(/*start=*/40, {kEnough, reserved_by(kFits)});
  EXPECT_LT(std::chrono::steady_clock::now() - start_time, std::chrono::seconds(60));
  const auto found = checks(0, "threshold").at(0)["last_good"].get<std::int64_t>();
  EXPECT_GE(found, kFits);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(checks(rank, "threshold").at(0)["last_good"], found);
    EXPECT_EQ(checks(rank, "threshold").at(0)["first_bad"], found + 1);
    std::size_t num_full = 0;
    for (const auto& trial : checks(rank, "fit_trial")) {
      const bool fits = trial["value"].get<std::int64_t>() <= found;
      EXPECT_EQ(trial["fits"], fits);
      EXPECT_EQ(trial["out_of_memory_ranks"], fits ? Json::array() : Json::array({1}));
      num_full += fits ? 0 : 1;
    }
    EXPECT_GE(num_full, 3U);
    const auto steps = checks(rank, "normal_step");
    EXPECT_EQ(steps.size(), 1 + num_full);  // one before the first trial
    for (const auto& step : steps) EXPECT_EQ(step["allocated_bytes"], 0);
  }
}

// What the ranks measure is what the dry run said, to the byte.
TEST_F(FitTrials, MeasuresWhatTheDryRunPredicts) {
  search(/*start=*/1, {kEnough, reserved_by(3)});
  for (int rank = 0; rank < 2; ++rank) {
    std::size_t num_fitting = 0;
    for (const auto& trial : checks(rank, "fit_trial")) {
      if (trial["fits"] == false) continue;
      ++num_fitting;
      const auto r = recipe(trial["value"]);
      const auto ledger = dry_run(r, load_model_config(r.model.path), 0, 2, 3);
      EXPECT_EQ(trial["measured_allocated_bytes"], ledger->peak_bytes());
      EXPECT_EQ(trial["measured_reserved_bytes"], ledger->allocator().statistics().reserved.peak);
    }
    EXPECT_GE(num_fitting, 3U);
  }
}

// Not enough for a step of the smallest value: that is no answer but an error that says so.
TEST_F(FitTrials, WhereNotEvenANormalStepFitsTheSearchFails) {
  try {
    search(/*start=*/1, {kEnough, 2 << 20});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_THAT(error.what(), testing::HasSubstr("a normal step with train.micro_batch_size=1 failed on rank 1"));
  }
}

}  // namespace
}  // namespace assay
