#include "harness/acceptance/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "harness/acceptance/checksums.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/recipe/recipe_json.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

LoadedRecipe tiny(const std::vector<std::string>& overrides = {}) {
  return load_recipe("recipes/tiny_cpu.yaml", overrides, {});
}

bool sha256sum_agrees(const fs::path& folder) {
  return std::system(
             ("cd '" + folder.string() + "' && sha256sum --strict --quiet -c SHA256SUMS >/dev/null 2>&1").c_str()) == 0;
}

TEST(RunFolder, HoldsRecipeMachineAndLimitsAndReadsBackEqual) {
  const TemporaryFolder folder;
  const auto run = folder.path / "run";
  const auto loaded = tiny({"train.max_steps=7"});
  begin_run_folder(run, loaded);
  EXPECT_EQ(recipe_of_run(run), loaded.recipe);
  EXPECT_TRUE(parse_json(read_text_file(run / "machine.json"), "machine.json").contains("host"));
  EXPECT_TRUE(fs::exists(run / "limits.yaml"));
  EXPECT_TRUE(is_unfinished(run));
  EXPECT_THROW(begin_run_folder(run, loaded), Error);  // it is in use
}

TEST(RunFolder, ChecksumsAreThoseOfSha256sumAndTellAChange) {
  const TemporaryFolder folder;
  const auto run = folder.path / "run with a space";
  open_run_folder(run, tiny(), /*needs_limits=*/true);
  make_folders(run / "jobs/train-1/events");
  write_file_durably(run / "jobs/train-1/events/rank_00000.jsonl", "{}\n");
  write_file_durably(run / "jobs/odd\\name", "x");
  write_file_durably(run / "jobs/empty", "");
  write_checksums(run);
  EXPECT_TRUE(sha256sum_agrees(run));
  EXPECT_FALSE(is_unfinished(run));
  EXPECT_TRUE(fs::exists(run / "events/rank_00000.jsonl"));  // through the link
  const auto text = read_text_file(run / "SHA256SUMS");
  EXPECT_THAT(text, testing::HasSubstr("  jobs/train-1/events/rank_00000.jsonl\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("  events/")));
  EXPECT_NO_THROW(check_evidence(run, {}));
  write_file_durably(run / "jobs/train-1/events/rank_00000.jsonl", "{ }\n");
  EXPECT_FALSE(sha256sum_agrees(run));
  EXPECT_NO_THROW(check_evidence(run, {"jobs/train-1/events/rank_00000.jsonl"}));
  fs::remove(run / "jobs/odd\\name");
  try {
    check_evidence(run, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_THAT(error.what(), testing::HasSubstr("\n  jobs/odd\\name is missing\n"
                                                 "  jobs/train-1/events/rank_00000.jsonl was changed\n"));
  }
}

TEST(RunFolder, ARunThatIsGoingOnIsLeftAlone) {
  const TemporaryFolder folder;
  const auto run = folder.path / "run";
  auto lock = std::optional(begin_run_folder(run, tiny()));
  make_folders(run / "jobs/train-1");
  write_file_durably(run / "jobs/train-1/job.json", "{}");
  const auto hash = recipe_hash(tiny().recipe);
  EXPECT_THROW(lock_run_folder(run), Error);
  EXPECT_FALSE(find_unfinished_training(folder.path, hash));
  lock.reset();
  EXPECT_EQ(find_unfinished_training(folder.path, hash), run);
  EXPECT_NO_THROW(lock_run_folder(run));
}

TEST(RunFolder, AFolderWithSomethingElseIsNotTouched) {
  const TemporaryFolder folder;
  write_file_durably(folder.path / "letter.txt", "dear");
  EXPECT_THROW(begin_run_folder(folder.path, tiny()), Error);
  EXPECT_FALSE(fs::exists(folder.path / "recipe.yaml"));
  EXPECT_THROW(recipe_of_run(folder.path), Error);
}

TEST(RunFolder, AnotherRecipeIsRefusedByItsKeys) {
  const TemporaryFolder folder;
  begin_run_folder(folder.path / "run", tiny());
  EXPECT_NO_THROW(check_same_recipe(folder.path / "run", tiny({"name=other"}).recipe));
  try {
    check_same_recipe(folder.path / "run", tiny({"train.max_steps=7", "name=other"}).recipe);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    EXPECT_THAT(error.what(), testing::HasSubstr("train.max_steps: 20 and 7"));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n  name")));
  }
}

TEST(RunFolder, TheNewestUnfinishedTrainingOfTheSameRecipeIsFound) {
  const TemporaryFolder folder;
  const auto begin = [&](const char* name, const LoadedRecipe& loaded, int age) {
    const auto run = folder.path / name;
    begin_run_folder(run, loaded);
    make_folders(run / "jobs/train-1");
    write_file_durably(run / "jobs/train-1/job.json", "{}");
    fs::last_write_time(run / "recipe.yaml", fs::file_time_type::clock::now() - std::chrono::hours(age));
    return run;
  };
  const auto hash = recipe_hash(tiny().recipe);
  EXPECT_FALSE(find_unfinished_training(folder.path, hash));
  begin("old", tiny(), 5);
  const auto newer = begin("newer", tiny({"name=renamed"}), 4);
  begin("other_recipe", tiny({"seed=1"}), 1);
  write_checksums(begin("finished", tiny(), 2));
  write_file_durably(begin("acceptance", tiny(), 3) / "results.jsonl", "");
  fs::create_symlink(folder.path / "loop", folder.path / "loop");
  EXPECT_EQ(find_unfinished_training(folder.path, hash), newer);
  EXPECT_FALSE(find_unfinished_training(folder.path / "nowhere", hash));
}

}  // namespace
}  // namespace assay
