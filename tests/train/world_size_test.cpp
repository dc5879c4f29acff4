#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "harness/recipe/enum_names.h"
#include "harness/train/step_batch.h"
#include "tests/support/batch_job.h"
#include "tests/support/whole_state.h"

namespace assay {
namespace {

using State = std::map<std::string, at::Tensor>;

struct Job {
  StrategyName strategy = StrategyName::none;
  int world_size = 1;
  std::int64_t accumulation = 1;
  std::int64_t steps = 4;
  bool tied = false;
  double max_grad_norm = 1;
  double learning_rate = 3e-3;
};

ModelConfig config_of(const Job& job) {
  ModelConfig config = small_job_config();
  config.vocab_size = 101;
  config.tie_word_embeddings = job.tied;
  return config;
}

/// Twelve rows a micro-step, unlike in length, however many ranks share them.
std::vector<Row> rows_of(const Job& job) {
  std::vector<std::int64_t> trained;
  for (std::int64_t i = 0; i < job.steps * job.accumulation * 12; ++i) trained.push_back(i * 7 % kLength);
  auto rows = rows_with(trained);
  for (auto& row : rows) {
    for (auto& id : row.input_ids) id %= 101;
    for (auto& label : row.labels) label = label == kIgnoredLabel ? label : label % 101;
  }
  return rows;
}

struct Result {
  std::vector<StepRecord> records;
  State initial, final;
};

Result train(const Job& job) {
  const TemporaryFolder folder;
  Recipe recipe = batches_recipe({job.world_size, 12 / job.world_size, job.accumulation, job.steps}, rows_of(job),
                                 folder.path / "batches.safetensors");
  recipe.parallel.strategy = job.strategy;
  recipe.train.max_grad_norm = job.max_grad_norm;
  recipe.optimizer.learning_rate = job.learning_rate;
  recipe.optimizer.weight_decay = 0.1;
  WholeState initial(job.world_size);
  WholeState final(job.world_size);
  Result result;
  std::mutex mutex;
  run_trainers(recipe, config_of(job), job.world_size, find_free_port(), [&](TestRank rank) {
    initial.add(rank.rank, rank.trainer);
    std::vector<StepRecord> records;
    for (std::int64_t step = 0; step < job.steps; ++step) records.push_back(rank.trainer.step());
    final.add(rank.rank, rank.trainer);
    const std::lock_guard lock(mutex);
    result.records = records;
  });
  result.initial = initial.tensors();
  result.final = final.tensors();
  return result;
}

bool is_parameter(const std::string& name) { return name.rfind("parameters.", 0) == 0; }

double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

void expect_same_numbers(const Result& mine, const Result& one) {
  for (std::size_t step = 0; step < one.records.size(); ++step) {
    EXPECT_NEAR(mine.records[step].loss, one.records[step].loss, 5e-5) << "step " << step;
    EXPECT_NEAR(mine.records[step].grad_norm, one.records[step].grad_norm, 5e-4 * one.records[step].grad_norm);
    EXPECT_EQ(mine.records[step].loss_tokens, one.records[step].loss_tokens);
  }
  ASSERT_EQ(mine.final.size(), one.final.size());
  for (const auto& [name, tensor] : one.final) {
    if (!is_parameter(name)) continue;
    EXPECT_TRUE(at::equal(mine.initial.at(name), one.initial.at(name))) << name;
    EXPECT_LE(norm_of(mine.final.at(name) - tensor), 5e-3 * norm_of(tensor - one.initial.at(name))) << name;
  }
}

TEST(WorldSize, LossesAndWeightsAreThoseOfOneRank) {
  for (const std::int64_t accumulation : {1, 3}) {
    const Result one = train({StrategyName::none, 1, accumulation});
    for (const int world_size : {2, 3, 4}) {
      for (const auto strategy : {StrategyName::ddp, StrategyName::zero2, StrategyName::fsdp}) {
        SCOPED_TRACE(std::string(name_of(strategy)) + " x " + std::to_string(world_size) + ", accumulation " +
                     std::to_string(accumulation));
        expect_same_numbers(train({strategy, world_size, accumulation}), one);
      }
    }
  }
}

// E05: 101 rows are no multiple of the ranks, and with tied embeddings each of them has a gradient from the head. E06:
// the tied matrix is one parameter with one pair of moments.
TEST(WorldSize, EveryRowOfATiedEmbeddingMovesAsOnOneRank) {
  Job job{StrategyName::none, 1, 1, 1, true};
  const std::string name = "parameters.model.embed_tokens.weight";
  const auto moved = [&] {
    const Result result = train(job);
    std::int64_t num_elements = 0;
    for (const auto& [key, tensor] : result.final) num_elements += tensor.numel();
    EXPECT_EQ(num_elements, 3 * config_of(job).num_parameters());
    return (result.final.at(name) - result.initial.at(name)).to(at::kDouble);
  };
  const at::Tensor one = moved();
  const at::Tensor sizes = one.norm(2, {1});
  EXPECT_GT(sizes.min().item<double>(), 0);
  for (job.world_size = 2; job.world_size <= 4; ++job.world_size) {
    for (const auto strategy : {StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
      job.strategy = strategy;
      const double worst = ((moved() - one).norm(2, {1}) / sizes).max().item<double>();
      EXPECT_LE(worst, 5e-3) << name_of(strategy) << " x " << job.world_size;
    }
  }
}

// E02, E03: after one step the first moment is a tenth of the clipped gradient. Its norm over all shards must be the
// limit: clipped by its own norm, each shard would have that. The shards' norms join as squares.
TEST(WorldSize, ClippingGoesByOneNormOfAllShards) {
  constexpr double kLimit = 0.1;
  const auto gradients = [](const Result& result) {
    std::vector<at::Tensor> flat;
    for (const auto& [name, tensor] : result.final) {
      if (name.rfind("exp_avg.", 0) == 0) flat.push_back(tensor.reshape({-1}).to(at::kDouble) * 10);
    }
    return at::cat(flat);
  };
  const Result plain = train({StrategyName::none, 1, 1, 1, false, 0});
  const at::Tensor whole = gradients(plain);
  const double norm = norm_of(whole);
  EXPECT_GT(norm, 5 * kLimit);
  for (const auto strategy : {StrategyName::ddp, StrategyName::zero2, StrategyName::fsdp}) {
    SCOPED_TRACE(name_of(strategy));
    const Result clipped = train({strategy, 2, 1, 1, false, kLimit});
    EXPECT_NEAR(clipped.records[0].grad_norm, norm, 1e-5 * norm);
    const at::Tensor mine = gradients(clipped);
    EXPECT_NEAR(norm_of(mine), kLimit, 1e-4 * kLimit);
    EXPECT_LE(norm_of(mine - whole * (kLimit / norm)), 1e-4 * kLimit) << "the direction changed";
  }
}

// E12: memory that nothing was written to is NaN here. Every rank must compute the logits of a rank alone.
TEST(WorldSize, TablesAreTheSameOnAllRanks) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  EXPECT_TRUE(at::empty({4}).isnan().all().item<bool>());
  const at::Tensor ids = at::arange(2 * kLength, at::kLong).mul(37).remainder(101).view({2, kLength});
  std::vector<at::Tensor> all;
  std::mutex mutex;
  for (const auto strategy : {StrategyName::none, StrategyName::ddp, StrategyName::zero1, StrategyName::zero2}) {
    const int world_size = strategy == StrategyName::none ? 1 : 3;
    Recipe recipe = recipe_of({world_size});
    recipe.data.format = DataFormat::synthetic;
    recipe.parallel.strategy = strategy;
    run_trainers(recipe, config_of({}), world_size, find_free_port(), [&](TestRank rank) {
      const at::NoGradGuard no_grad;
      const at::Tensor logits = rank.trainer.model().logits(ids);
      const std::lock_guard lock(mutex);
      all.push_back(logits);
    });
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
  ASSERT_EQ(all.size(), 10U);
  EXPECT_TRUE(all.front().isfinite().all().item<bool>());
  for (const auto& logits : all) EXPECT_TRUE(at::equal(logits, all.front()));
}

// E17: five samples for eight rows a step. Ranks share them by sample, so each comes once an epoch.
TEST(WorldSize, FewerSamplesThanRowsAreSharedBySample) {
  const TemporaryFolder folder;
  const auto text = folder.path / "text.txt";
  std::ofstream(text) << "aaaabbbbccccddddeeee";
  const auto rows = make_byte_rows({text}, 4, /*shuffle=*/true, 1);
  EXPECT_EQ(rows->epoch_samples(), 5);
  const auto device = make_cpu_device(1);
  std::vector<std::int64_t> seen;
  for (std::int64_t step = 0; step < 5; ++step) {
    for (int rank = 0; rank < 4; ++rank) {
      const BatchShape shape{2, 1, rank, 4};
      const auto batch = load_step_batch(*rows, step * shape.step_rows(), shape, *device);
      for (std::int64_t row = 0; row < 2; ++row)
        seen.push_back(batch.micro_batches[0].input_ids[row][0].item<std::int64_t>());
    }
  }
  ASSERT_EQ(seen.size(), 40U);
  for (std::size_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<std::int64_t> samples(seen.begin() + static_cast<std::ptrdiff_t>(5 * epoch),
                                      seen.begin() + static_cast<std::ptrdiff_t>(5 * epoch + 5));
    std::sort(samples.begin(), samples.end());
    EXPECT_EQ(samples, (std::vector<std::int64_t>{'a', 'b', 'c', 'd', 'e'})) << "epoch " << epoch;
  }
}

}  // namespace
}  // namespace assay
