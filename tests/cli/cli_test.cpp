#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "harness/core/json.h"
#include "harness/recipe/load_recipe.h"
#include "harness/recipe/recipe_json.h"
#include "tests/support/run_program.h"

namespace assay {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ProgramResult assay_program(const std::vector<std::string>& arguments) {
  return run_program(ASSAY_BINARY_DIR "/assay", arguments);
}

const std::string kTiny = ASSAY_SOURCE_DIR "/recipes/tiny_cpu.yaml";

TEST(Cli, HelpAndVersionAreOnStdout) {
  for (const char* word : {"--help", "-h", "help"}) {
    const auto result = assay_program({word});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("assay validate RECIPE [KEY=VALUE ...]"));
  }
  EXPECT_THAT(assay_program({"--version"}).out, testing::MatchesRegex("assay [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  const auto help = assay_program({"validate", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--nproc-per-node"));
  EXPECT_THAT(help.out, Not(HasSubstr("--output")));
}

TEST(Cli, OutputThatIsLostAndAPipeForAFileAreErrors) {
  const std::string assay = ASSAY_BINARY_DIR "/assay";
  EXPECT_EQ(run_program("/bin/sh", {"-c", assay + " --help >/dev/full"}).exit_code, 3);
  EXPECT_EQ(run_program("/bin/sh", {"-c", assay + " --help 2>&- >&- <&-"}).exit_code, 0);
  const auto pipe = run_program(
      "/bin/sh", {"-c", "d=$(mktemp -d); mkfifo $d/p; timeout 20 " + assay + " show $d/p; rc=$?; rm -r $d; exit $rc"});
  EXPECT_EQ(pipe.exit_code, 2);
  EXPECT_THAT(pipe.err, HasSubstr("is not a regular file"));
}

TEST(Cli, UsageMistakesEndWithTwoAndNameTheNearest) {
  const auto nothing = assay_program({});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("Usage:"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"valdate"}, "did you mean validate?"},
      {{"frobnicate"}, "there is no command \"frobnicate\""},
      {{"validate", kTiny, "--jsn"}, "no option --jsn; did you mean --json?"},
      {{"validate", kTiny, "--nproc-per-nodes=2"}, "did you mean --nproc-per-node?"},
      {{"validate", kTiny, "-q"}, "no option --q"},
      {{"validate"}, "validate needs RECIPE"},
      {{"validate", kTiny, "other.yaml"}, "\"other.yaml\" is a second argument"},
      {{"validate", kTiny, "--nproc-per-node"}, "nproc-per-node"},
      {{"validate", kTiny, "--nproc-per-node", "--json"}, "--nproc-per-node needs a value"},
      {{"validate", kTiny, "--json=false"}, "--json takes no value, as in --json=false"},
      {{"validate", kTiny, "--nproc-per-node", "-1"}, "parallel.nproc_per_node: -1 is out of range, allowed: 1 to"},
      {{"train", kTiny, "--allow-change", "train.max_stepz"},
       "--allow-change train.max_stepz: unknown key; did you mean train.max_steps?"},
      {{"train", kTiny, "--allow-change", "seed", "--allow-change=train"}, "--allow-change train: is a section"},
      {{"train", kTiny, "--allow-change", "model.config.hidden_size"}, "write model.config"},
      {{"validate", kTiny, "--nproc-per-node", "two"},
       "parallel.nproc_per_node: two is given, expected is a whole number"},
      {{"validate", "/nonexistent.yaml"}, "/nonexistent.yaml"},
      {{"show", kTiny, "seed=3"}, "show takes one PATH, and \"seed=3\" is a second argument"},
      {{"report", "runs/none", "accept.stages=[train]"}, "\"accept.stages=[train]\" is a second argument"},
      {{"show", std::string(300, 'x')}, std::string(300, 'x') + ": File name too long"},
      {{"report", std::string(300, 'x')}, std::string(300, 'x')},
  };
  for (const auto& [words, text] : cases) {
    const auto result = assay_program(words);
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_THAT(result.err, StartsWith("assay: "));
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Cli, ANumberOptionRefusesWhatIsNoNumberOfItsRange) {
  for (const char* option : {"--atol", "--rtol", "--loss-atol"}) {
    for (const char* value : {"-1", "-1e-9", "one", "nan", "inf", "1e-3x", ""}) {
      const auto problem = std::string(option) + " " + value + ": expected a number, 0 or more";
      const auto apart = assay_program({"verify", "model", "reference", option, value});
      EXPECT_EQ(apart.exit_code, 2);
      EXPECT_THAT(apart.err, StartsWith("assay: " + problem));
      const auto joined = assay_program({"verify", "model", "reference", std::string(option) + "=" + value});
      EXPECT_EQ(joined.exit_code, 2);
      EXPECT_EQ(joined.err, apart.err);
    }
  }
  for (const char* option : {"--nproc-per-node", "--max-restarts", "--monitor-interval", "--redirects"}) {
    const auto result = assay_program({"launch", option, "-1", "--", "/bin/true"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, StartsWith("assay: " + std::string(option) + " -1: expected"));
  }
}

TEST(Cli, ValidatePrintsARecipeThatLoadsAgain) {
  const auto result = assay_program({"validate", kTiny, "train.max_steps=7", "--nproc_per_node=1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("max_steps: 7  # command line\n"));
  const TemporaryFolder folder;
  std::ofstream(folder.path / "again.yaml") << result.out;
  const auto expected = load_recipe(kTiny, {"train.max_steps=7", "parallel.nproc_per_node=1"}, {}).recipe;
  EXPECT_EQ(load_recipe(folder.path / "again.yaml", {}, {}).recipe, expected);
  const auto json = assay_program({"validate", "--json", kTiny, "train.max_steps=7", "--nproc-per-node", "1"});
  EXPECT_EQ(recipe_from_json(parse_json(json.out, "stdout")), expected);
}

TEST(Cli, WarningsGoToStderr) {
  const auto result = assay_program({"validate", kTiny, "schedule.warmup_steps=20", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("ends inside its warm-up"));
  EXPECT_NO_THROW(parse_json(result.out, "stdout"));
}

// K09: paths reach the program as they are.
TEST(Cli, ARecipeMayLieAnywhere) {
  const TemporaryFolder folder;
  for (const std::string name : {"a b.yaml", "it's;$HOME.yaml", "-x.yaml", "new\nline.yaml", "a=b.yaml"}) {
    const auto path = folder.path / name;
    std::filesystem::copy_file(kTiny, path);
    EXPECT_EQ(assay_program({"validate", path}).exit_code, 0) << name;
    EXPECT_EQ(assay_program({"validate", "--", path}).exit_code, 0) << name;
  }
}

TEST(Cli, TenMistakesAreToldAtOnceAndNothingIsPrinted) {
  const TemporaryFolder folder;
  const auto path = folder.path / "ten.yaml";
  std::ofstream(path)
      << "seeds: 3\nmode: fool\nmodel: {path: 3}\ndata:\n  format: synthetic\n  max_seq_length: 64\ntrain:\n"
         "  micro_batch_size: -1\n  max_steps: 010\n  max_steps: 11\n  eval_interval: [1]\n"
         "checkpoint: {save_at_end: yes, keep_latest: 1}\n<<: {seed: 1}\n";
  const auto result = assay_program({"validate", path});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, StartsWith("assay: 11 mistakes in the recipe:\n"));
  const auto lines = split_lines(result.err);
  const std::vector<std::string> places{"1:1",  "2:7",   "3:15",  "6:3",   "8:21", "9:14",
                                        "10:3", "11:18", "12:27", "12:45", "13:1"};
  ASSERT_EQ(lines.size(), places.size() + 1);
  for (std::size_t i = 0; i < places.size(); ++i)
    EXPECT_THAT(lines[i + 1], StartsWith(path.string() + ":" + places[i] + ": "));
}

TEST(Cli, EveryKeyIsListed) {
  const auto result = assay_program({"validate", "--keys"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* key :
       {"train.max_steps (whole number, 1 to", "checkpoint.async (true or false", "device_memory (bytes"}) {
    EXPECT_THAT(result.out, HasSubstr(key));
  }
}

/// The files of a run of which no job was started; SHA256SUMS, if it is to have ended, made by sha256sum.
class RunFolderOfCli : public testing::Test {
 protected:
  RunFolderOfCli() {
    std::ofstream(run / "recipe.yaml") << assay_program({"validate", kTiny}).out;
    std::filesystem::copy_file(ASSAY_SOURCE_DIR "/recipes/limits/cpu.yaml", run / "limits.yaml");
    std::ofstream(run / "machine.json") << "{}\n";
  }

  void end() const {
    const auto sums = run_program("/bin/sh", {"-c", "sha256sum recipe.yaml limits.yaml machine.json >SHA256SUMS"}, 60,
                                  {.environment = {}, .folder = run});
    ASSERT_EQ(sums.exit_code, 0) << sums.err;
  }

  /// What a refused report leaves: nothing is there or changed that was not before.
  void expect_refused(const std::string& problem) const {
    const auto before = read_text_file(run / "SHA256SUMS");
    const auto result = assay_program({"report", run});
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr(problem));
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(std::filesystem::exists(run / "results.jsonl"));
    EXPECT_FALSE(std::filesystem::exists(run / "report.json"));
    EXPECT_EQ(read_text_file(run / "SHA256SUMS"), before);
  }

  const TemporaryFolder folder;
  const std::filesystem::path& run = folder.path;
};

// SHA256SUMS ends a run: it must still be able to go on after somebody looked at it.
TEST_F(RunFolderOfCli, AReportOfAnUnfinishedRunLeavesItUnfinishedAndSaysSo) {
  const auto unfinished = assay_program({"report", run});
  EXPECT_EQ(unfinished.exit_code, 3);
  EXPECT_THAT(unfinished.err, HasSubstr("it has no SHA256SUMS"));
  EXPECT_TRUE(std::filesystem::exists(run / "report.json"));
  EXPECT_FALSE(std::filesystem::exists(run / "SHA256SUMS"));
  EXPECT_FALSE(std::filesystem::exists(run / "results.jsonl"));
}

TEST_F(RunFolderOfCli, AReportIsMadeAgainAlsoWhereItWasChanged) {
  end();
  for (int i = 0; i < 2; ++i) {
    const auto ended = assay_program({"report", run});
    EXPECT_EQ(ended.exit_code, 3);
    EXPECT_EQ(ended.err, "");
    EXPECT_THAT(read_text_file(run / "SHA256SUMS"), HasSubstr("  results.jsonl\n"));
    EXPECT_THAT(read_text_file(run / "report.md"), HasSubstr("incomplete"));
    for (const char* name : {"results.jsonl", "report.json", "report.md"}) std::ofstream(run / name) << "accepted";
  }
}

TEST_F(RunFolderOfCli, EvidenceThatWasChangedRemovedOrAddedIsNotReported) {
  end();
  std::ofstream(run / "limits.yaml", std::ios::app) << "\n";
  std::filesystem::remove(run / "machine.json");
  std::filesystem::create_directories(run / "jobs/single-1");
  std::ofstream(run / "jobs/single-1/job.json") << "{}";
  expect_refused(
      "SHA256SUMS says:\n  limits.yaml was changed\n  machine.json is missing\n  jobs/single-1/job.json was added\n");
}

TEST_F(RunFolderOfCli, ChecksumsThatAreCutShortAreNoneAtAll) {
  std::ofstream(run / "SHA256SUMS") << "";
  expect_refused("recipe.yaml was added");
  std::ofstream(run / "SHA256SUMS") << "0123  recipe.yaml\n";
  expect_refused("SHA256SUMS is damaged");
}

TEST(Cli, ShowListsGoodFilesAndRefusesBadOnesWithTwo) {
  const std::string data = ASSAY_SOURCE_DIR "/tests/data/safetensors/";
  const auto good = assay_program({"show", data + "valid/one_tensor.safetensors"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("weight  F32    [3,4]  48\n"));
  const auto json = assay_program({"show", "--json", data + "valid/one_tensor.safetensors"});
  EXPECT_EQ(parse_json(json.out, "show --json")["tensors"][0]["bytes"], 48);
  const auto bad = assay_program({"show", data + "malformed/overlap.safetensors"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_EQ(bad.out, "");
  EXPECT_THAT(bad.err, HasSubstr("overlap.safetensors: tensor \"b\""));
}

}  // namespace
}  // namespace assay
