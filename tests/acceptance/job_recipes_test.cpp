#include "harness/acceptance/job_recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "harness/core/error.h"
#include "tests/acceptance/synthetic_run.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

TEST(JobRecipes, TheTwinIsNeverResumed) {
  const auto target = synthetic_recipe();
  EXPECT_EQ(train_recipe(target).resume, "auto");
  auto twin = twin_recipe(target);
  EXPECT_EQ(twin.resume, "never");
  twin.resume = "auto";
  EXPECT_EQ(twin, train_recipe(target));
}

TEST(JobRecipes, OneProcessCannotReadTheBatchesOfSeveral) {
  auto target = synthetic_recipe();
  target.data.format = DataFormat::batches;
  target.data.path = {{"a.safetensors"}};
  EXPECT_EQ(single_recipe(target).data.format, DataFormat::synthetic);
  EXPECT_TRUE(single_recipe(target).data.path.empty());
  target.parallel.nproc_per_node = 1;
  EXPECT_EQ(single_recipe(target).data, target.data);
}

// From 65536 down to 1 a loss scale is halved 16 times, and a step that overflows updates nothing.
TEST(JobRecipes, OneProcessHasTheStepsToFindItsLossScale) {
  auto target = synthetic_recipe();
  EXPECT_EQ(single_recipe(target).train.max_steps, 2);
  target.train.precision = Precision::fp16;
  EXPECT_EQ(single_recipe(target).train.max_steps, 18);
  target.train.loss_scale = {.initial = 6, .growth_interval = 2000, .minimum = 1};  // 6, 3, 1.5, 1
  EXPECT_EQ(single_recipe(target).train.max_steps, 5);
  target.train.loss_scale.initial = 1;
  EXPECT_EQ(single_recipe(target).train.max_steps, 2);
  target.train.loss_scale.initial = 65536;
  target.parallel.nproc_per_node = 1;
  target.data.format = DataFormat::batches;
  EXPECT_EQ(single_recipe(target).train.max_steps, kSteps) << "the file may hold no more";
}

class Precondition : public testing::Test {
 protected:
  Precondition() {
    std::filesystem::copy_file(ASSAY_SOURCE_DIR "/recipes/models/tiny/config.json", folder.path / "config.json");
    recipe.model.path = folder.path;
    recipe.data.path = {{folder.path / "text"}};
    std::ofstream(folder.path / "text") << "words";
  }

  /// Kind and words of the refusal; "" if there is none.
  std::string refusal() const {
    try {
      check_can_be_accepted(recipe);
      check_inputs(recipe);
      return "";
    } catch (const Error& error) {
      return std::string(name_of(error.kind())) + ": " + error.what();
    }
  }

  TemporaryFolder folder;
  Recipe recipe = synthetic_recipe();
};

TEST_F(Precondition, OneStepLeavesNothingToResume) {
  EXPECT_EQ(refusal(), "");
  recipe.train.max_steps = 1;
  EXPECT_THAT(refusal(), testing::StartsWith("recipe: train.max_steps is 1"));
  recipe.accept.stages = {"machine"};
  EXPECT_EQ(refusal(), "");
}

TEST_F(Precondition, EveryPathThatIsUsedMustBeThere) {
  recipe.data.eval_path = folder.path / "none";
  EXPECT_EQ(refusal(), "") << "train.eval_interval is 0";
  recipe.train.eval_interval = 5;
  EXPECT_THAT(refusal(), testing::StartsWith("data: data.eval_path"));
  recipe.data.path.push_back({folder.path / "mistyped"});
  EXPECT_THAT(refusal(), testing::AllOf(testing::StartsWith("data: data.path"), testing::HasSubstr("mistyped")));
  recipe.train.eval_interval = 0;
  recipe.data.format = DataFormat::synthetic;
  EXPECT_EQ(refusal(), "");
  recipe.model.path = "nowhere";
  EXPECT_THAT(refusal(), testing::StartsWith("data: model.path"));
}

TEST_F(Precondition, TheModelMustBeOneThatIsTrained) {
  recipe.model.path = "recipes/models/qwen3-0.6b";
  EXPECT_THAT(refusal(), testing::StartsWith("recipe: "));
}

TEST_F(Precondition, RowsMustNotBeLongerThanTheModelTakes) {
  recipe.model.config = R"({"max_position_embeddings": 16})";
  EXPECT_EQ(refusal(), "");
  recipe.data.sequence_length = 17;
  EXPECT_THAT(refusal(), testing::StartsWith("recipe: data.sequence_length 17 is above the model's"));
}

}  // namespace
}  // namespace assay
