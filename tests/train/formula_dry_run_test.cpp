#include <gtest/gtest.h>

#include <string>

#include "harness/memory/formula.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/recipe/enum_names.h"
#include "harness/train/dry_run.h"

namespace assay {
namespace {

ModelConfig zoo_model(const std::string& name) {
  return load_model_config(std::filesystem::path(ASSAY_SOURCE_DIR) / "recipes/models" / name);
}

Recipe recipe_for(DeviceChoice device) {
  Recipe recipe;
  recipe.device = device;
  recipe.model.attention = AttentionChoice::flash;
  recipe.data.sequence_length = 2048;
  recipe.train.micro_batch_size = 1;
  recipe.train.gradient_accumulation_steps = 1;
  recipe.train.precision = Precision::bf16;
  return recipe;
}

// The closed form beside the program. It knows no rounding, no scratch and no small temporaries: 2 %, beside cuBLAS's
// workspaces, which are part of its overhead.
void expect_alike(const Recipe& recipe, const std::string& model, int world_size) {
  const auto config = zoo_model(model);
  const auto dry = static_cast<double>(dry_run(recipe, config, 0, world_size)->peak_bytes());
  Overhead workspaces;
  if (recipe.device == DeviceChoice::cuda) workspaces.workspaces = cuda_overhead({}).workspaces;
  const auto terms = formula_bytes(recipe, config, world_size, workspaces);
  EXPECT_NEAR(static_cast<double>(terms.total()) / dry, 1, 0.02)
      << model << ", " << name_of(recipe.device) << ", " << name_of(*recipe.parallel.strategy) << ", "
      << name_of(recipe.train.precision) << ", " << name_of(recipe.train.activation_checkpointing) << ": "
      << terms.total() << " beside " << dry;
}

class FormulaAndDryRun : public testing::TestWithParam<DeviceChoice> {};
INSTANTIATE_TEST_SUITE_P(Devices, FormulaAndDryRun, testing::Values(DeviceChoice::cpu, DeviceChoice::cuda),
                         [](const auto& device) { return std::string(name_of(device.param)); });

TEST_P(FormulaAndDryRun, AreAlikeForEveryStrategyPrecisionAndCheckpointing) {
  install_tracking_allocators();
  Recipe recipe = recipe_for(GetParam());
  for (const char* model : {"llama-3.2-1b", "llama-2-7b"}) {
    for (const auto strategy :
         {StrategyName::none, StrategyName::ddp, StrategyName::zero1, StrategyName::zero2, StrategyName::fsdp}) {
      recipe.parallel.strategy = strategy;
      for (const auto precision : {Precision::bf16, Precision::pure_bf16}) {
        recipe.train.precision = precision;
        recipe.optimizer.moment_dtype = precision == Precision::pure_bf16 ? FloatType::bf16 : FloatType::fp32;
        for (const auto checkpointing :
             {ActivationCheckpointing::none, ActivationCheckpointing::selective, ActivationCheckpointing::full}) {
          recipe.train.activation_checkpointing = checkpointing;
          expect_alike(recipe, model, strategy == StrategyName::none ? 1 : 8);
        }
      }
    }
  }
}

TEST_P(FormulaAndDryRun, AreAlikeForEveryWayToCommunicate) {
  install_tracking_allocators();
  for (const auto strategy : {StrategyName::ddp, StrategyName::zero2, StrategyName::fsdp}) {
    Recipe recipe = recipe_for(GetParam());
    recipe.parallel.strategy = strategy;
    for (const std::int64_t units_in_flight : {1, 3}) {
      recipe.parallel.units_in_flight = units_in_flight;
      expect_alike(recipe, "llama-3.2-1b", 8);
      expect_alike(recipe, "llama-2-7b", 8);
    }
    recipe = recipe_for(GetParam());
    recipe.parallel.strategy = strategy;
    recipe.parallel.reshard_after_forward = false;
    expect_alike(recipe, "llama-2-7b", 8);
    recipe.train.loss_chunk_tokens = 2048;
    expect_alike(recipe, "llama-3.2-1b", 8);
    recipe.parallel.reduce_dtype = FloatType::bf16;
    expect_alike(recipe, "llama-3.2-1b", 8);
  }
}

}  // namespace
}  // namespace assay
