#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <thread>

#include "tests/support/processes.h"
#include "tests/support/sharded_run.h"
#include "tests/support/socket_bytes.h"

namespace assay {
namespace {

// Large enough that the headers of operations, and the few numbers of a step, are far below 1 % of the bytes.
ModelConfig wide_config() {
  ModelConfig config;
  config.vocab_size = 512;
  config.hidden_size = 128;
  config.intermediate_size = 352;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 32;
  return config;
}

struct BytesCase {
  ShardedCase run;
  double multiple;  ///< bytes each rank sends a step / ((n - 1) / n of the parameters' bytes in fp32)

  friend void PrintTo(const BytesCase& c, std::ostream* out) { PrintTo(c.run, out); }
};

class BytesSent : public ::testing::TestWithParam<BytesCase> {};

// What the kernel says has arrived on the sockets of this process, whose threads are the ranks.
TEST_P(BytesSent, AreThoseOfTheClosedForm) {
  const auto& [run, multiple] = GetParam();
  const ModelConfig config = wide_config();
  const double n = run.world_size;
  const double expected =
      n * multiple * (n - 1) / n * 4 * static_cast<double>(config.num_parameters());  // of all ranks together
  std::barrier together(run.world_size);
  run_trainers(sharded_recipe(run), config, run.world_size, find_free_port(), [&](TestRank rank) {
    rank.trainer.step();
    together.arrive_and_wait();
    std::int64_t before = 0;
    if (rank.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the last acknowledgements of the first step
      before = socket_bytes_sent();
    }
    together.arrive_and_wait();
    rank.trainer.step();
    together.arrive_and_wait();
    if (rank.rank == 0) {
      const auto sent = [&] { return static_cast<double>(socket_bytes_sent() - before) / expected; };
      wait_until([&] { return sent() >= 1; }, 5);  // acknowledged a moment later
      EXPECT_NEAR(sent(), 1, 0.03);
    }
    together.arrive_and_wait();  // sockets stay open until then
  });
}

ShardedCase run_of(StrategyName strategy, int world_size, std::int64_t accumulation = 1, bool reshard = true,
                   FloatType reduce_dtype = FloatType::fp32) {
  return {strategy, world_size, Precision::fp32, ActivationCheckpointing::none, accumulation, 2,
          reshard,  false,      reduce_dtype};
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, BytesSent,
    ::testing::Values(BytesCase{run_of(StrategyName::ddp, 2), 2}, BytesCase{run_of(StrategyName::ddp, 3), 2},
                      BytesCase{run_of(StrategyName::ddp, 2, 3), 2}, BytesCase{run_of(StrategyName::zero1, 3), 2},
                      BytesCase{run_of(StrategyName::zero2, 2), 2}, BytesCase{run_of(StrategyName::zero2, 2, 3), 4},
                      BytesCase{run_of(StrategyName::fsdp, 2), 3}, BytesCase{run_of(StrategyName::fsdp, 3), 3},
                      BytesCase{run_of(StrategyName::fsdp, 2, 3), 9},
                      BytesCase{run_of(StrategyName::fsdp, 2, 1, false), 2},
                      BytesCase{run_of(StrategyName::ddp, 2, 1, true, FloatType::bf16), 1}));

}  // namespace
}  // namespace assay
