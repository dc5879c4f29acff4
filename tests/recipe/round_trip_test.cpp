#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/core/json.h"
#include "harness/recipe/recipe_json.h"
#include "tests/recipe/recipe_file.h"

namespace assay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Every kind of member away from its default, with values that are hard to write.
Recipe hard_recipe() {
  Recipe r;
  r.name = "no";
  r.mode = Mode::qlora;
  r.seed = 9223372036854775807;
  r.device = DeviceChoice::automatic;
  r.device_memory_bytes = 9007199254740993;
  r.model.path = "a \"b\"\n#c: \\ \x01 'é";
  r.model.config = R"({"a":1,"b":{"c":[1.5,null,true,"no","1e3"]},"d: e":1e-05,"f":1.0,"g":9223372036854775807})";
  r.model.init = ModelInit::load;
  r.tokenizer.path = "1e3";
  r.data.path = {{"x", 0.1}, {"true", 1}};
  r.data.chat_template = "~";
  r.optimizer.learning_rate = 0.1 + 0.2;
  r.optimizer.eps = 5e-324;
  r.optimizer.betas = {1.0 / 3, 0};
  r.lora.rank_pattern = {{"layers.0.q_proj", 4}, {"no", 2}};
  r.lora.alpha_pattern = {{"x", 1e22}};
  r.lora.alpha_pattern["x"] = 0.7;
  r.lora.target_modules = {"all-linear"};
  r.parallel.strategy = StrategyName::fsdp;
  r.plan.days = {{1.5, 3}};
  r.plan.tokens = 1e12;
  r.checkpoint.asynchronous = true;
  return r;
}

TEST(RoundTrip, JsonIsExactBeforeResolutionToo) { EXPECT_EQ(recipe_from_json(recipe_to_json(Recipe())), Recipe()); }

TEST(RoundTrip, JsonTextIsExact) {
  const auto recipe = hard_recipe();
  EXPECT_EQ(recipe_from_json(parse_json(dump_json(recipe_to_json(recipe)), "recipe")), recipe);
}

TEST(RoundTrip, TheResolvedRecipeLoadsAgainAndIsEqual) {
  const RecipeFile file(
      "model: {path: \"a: b\", config: {num_hidden_layers: 2, rope_parameters: {rope_type: default, rope_theta: "
      "1e4}}}\n"
      "data: {path: [{path: \"yes\", weight: 1.0}, b.txt], eval_path: \"#x\"}\ntokenizer: {path: bytes}\n"
      "device_memory: 1.5GiB\noptimizer: {learning_rate: 0.30000000000000004}\ntrain: {eval_interval: 3}\n",
      "a\nb: #.yaml");
  const auto first = file.load({"parallel.nproc_per_node=2", "resume=never", "seed=9223372036854775807"});
  const auto text = recipe_to_yaml(first);
  EXPECT_THAT(text, HasSubstr("  nproc_per_node: 2  # command line\n"));
  EXPECT_THAT(text, HasSubstr("  strategy: ddp  # resolved\n"));
  EXPECT_THAT(text, HasSubstr("  max_steps: 20  # default\n"));
  const auto second = RecipeFile(text).load();
  EXPECT_EQ(second.recipe, first.recipe);
  EXPECT_EQ(recipe_hash(second.recipe), recipe_hash(first.recipe));
}

TEST(RoundTrip, EveryRecipeOfTheProjectLoadsAgain) {
  int loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ASSAY_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto first = load_recipe(entry.path(), {}, {});
    EXPECT_EQ(RecipeFile(recipe_to_yaml(first)).load().recipe, first.recipe) << entry.path();
    ++loaded;
  }
  EXPECT_GE(loaded, 1);
}

TEST(RoundTrip, JsonIsReadAsStrictlyAsYaml) {
  auto json = recipe_to_json(hard_recipe());
  json["train"]["max_stepz"] = 3;
  json["train"]["max_steps"] = true;
  try {
    recipe_from_json(json);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_THAT(error.what(), HasSubstr("train.max_stepz: unknown key; did you mean train.max_steps?"));
    EXPECT_THAT(error.what(), HasSubstr("train.max_steps: true is given"));
  }
}

TEST(Hash, IsOfWhatIsComputed) {
  const auto base = RecipeFile(kSmall).load().recipe;
  auto same = base;
  same.name = "other";
  same.resume = "never";
  same.accept.stages = {"train"};
  same.plan.runs = 3;
  EXPECT_EQ(recipe_hash(same), recipe_hash(base));
  EXPECT_EQ(recipe_hash(base).size(), 64U);
  auto other = base;
  other.optimizer.learning_rate = 3.0000000000000003e-4;
  EXPECT_NE(recipe_hash(other), recipe_hash(base));
}

TEST(Differences, NameTheKeyAndBothValues) {
  const auto left = RecipeFile(kSmall).load().recipe;
  auto right = left;
  EXPECT_TRUE(differing_keys(left, right).empty());
  right.train.max_steps = 30;
  right.tokenizer.path = "bytes";
  EXPECT_THAT(differing_keys(left, right),
              ElementsAre("tokenizer.path: null and \"bytes\"", "train.max_steps: 20 and 30"));
  EXPECT_EQ(recipe_differences(left, right)[1].key, "train.max_steps");
}

}  // namespace
}  // namespace assay
