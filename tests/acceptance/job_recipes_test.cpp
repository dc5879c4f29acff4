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

class Precondition : public testing::Test {
 protected:
  Precondition() {
    recipe.model.path = folder.path;
    recipe.data.path = {{folder.path / "text"}};
    std::ofstream(folder.path / "text") << "words";
  }

  /// Kind and words of the refusal; "" if there is none.
  std::string refusal() const {
    try {
      check_can_be_accepted(recipe);
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

TEST_F(Precondition, EveryPathMustBeThere) {
  recipe.data.eval_path = folder.path / "none";
  EXPECT_THAT(refusal(), testing::StartsWith("data: data.eval_path"));
  recipe.data.path.push_back({folder.path / "mistyped"});
  EXPECT_THAT(refusal(), testing::AllOf(testing::StartsWith("data: data.path"), testing::HasSubstr("mistyped")));
  recipe.model.path = "nowhere";
  EXPECT_THAT(refusal(), testing::StartsWith("data: model.path"));
}

}  // namespace
}  // namespace assay
