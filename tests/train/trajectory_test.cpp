#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"
#include "harness/launch/rendezvous.h"
#include "harness/train/load_model.h"
#include "harness/train/tensor_bytes.h"
#include "tests/support/reference_run.h"
#include "tests/support/trainer_run.h"

namespace assay {
namespace {

struct Case {
  WarmupConvention convention;
  int world_size;
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << (c.convention == WarmupConvention::transformers ? "transformers" : "torchtitan") << ", " << c.world_size
         << " ranks";
  }
};

// |mine - final| / |final - initial| of every parameter, the largest.
double worst_displacement(Transformer& model, const ReferenceRun& reference) {
  const SafetensorsFile initial(reference.folder / "model.safetensors");
  const SafetensorsFile final(reference.values / "final.safetensors");
  double worst = 0;
  for (auto& unit : model.units()) {
    for (const auto& parameter : unit.parameters) {
      const auto read = [&](const SafetensorsFile& file) {
        const TensorInfo* info = file.find(parameter.name);
        EXPECT_NE(info, nullptr) << parameter.name;
        return tensor_over(*info, file.bytes(*info)).to(at::kDouble);
      };
      const at::Tensor theirs = read(final);
      const at::Tensor mine = parameter.value.detach().to(at::kDouble);
      const double moved = (theirs - read(initial)).norm().item<double>();
      worst = std::max(worst, (mine - theirs).norm().item<double>() / moved);
    }
  }
  return worst;
}

class Trajectory : public ::testing::TestWithParam<Case> {};

// Tolerances as in tests/data/train/llama20/case.json: the noise between two attention kernels of the reference program
// is 100 times smaller, the wrong variants listed there are at least 10 times larger.
TEST_P(Trajectory, EqualsTransformersAndIsNotTheMeanOfMeans) {
  const ReferenceRun reference(GetParam().convention, GetParam().world_size);
  std::mutex mutex;
  run_trainers(reference.recipe, reference.config, GetParam().world_size, find_free_port(), [&](TestRank rank) {
    load_weights(rank.trainer, reference.folder);
    std::vector<StepRecord> records;
    for (int step = 0; step < 20; ++step) records.push_back(rank.trainer.step());
    const std::lock_guard lock(mutex);
    double furthest_from_naive = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const Json& expected = reference.steps[i];
      const double norm = expected["grad_norm_before_clip"].get<double>();
      EXPECT_NEAR(records[i].loss, expected["loss"].get<double>(), 5e-5) << "step " << i;
      EXPECT_NEAR(records[i].grad_norm, norm, 5e-4 * norm) << "step " << i;
      EXPECT_NEAR(records[i].learning_rate, expected["lr"].get<double>(), 1e-9 * 0.006) << "step " << i;
      EXPECT_EQ(records[i].loss_tokens, expected["counted_tokens"].get<std::int64_t>()) << "step " << i;
      EXPECT_EQ(records[i].tokens, 4 * 2 * 24);
      const double naive = expected["naive_mean_of_micro_batch_means"].get<double>();
      EXPECT_GT(std::abs(records[i].loss - naive), 1e-3) << "step " << i;
      furthest_from_naive = std::max(furthest_from_naive, std::abs(records[i].loss - naive));
    }
    EXPECT_GT(furthest_from_naive, 0.2);
    EXPECT_LE(worst_displacement(rank.trainer.model(), reference), 5e-3);
  });
}

INSTANTIATE_TEST_SUITE_P(Schedules, Trajectory,
                         ::testing::Values(Case{WarmupConvention::transformers, 1},
                                           Case{WarmupConvention::transformers, 2},
                                           Case{WarmupConvention::torchtitan, 1},
                                           Case{WarmupConvention::torchtitan, 2}));

}  // namespace
}  // namespace assay
