// Mistakes of the user that show only once something runs: each is told with its name, and nothing is promised that
// does not hold.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include "checkpoint/safetensors_writer.h"
#include "harness/launch/rendezvous.h"
#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Mistake : public EndToEnd {
 protected:
  static constexpr std::int64_t kRows = 8, kLength = 16;

  /// Steps of one row of `kLength` tokens; the labels of the first `ignored` steps are all -100.
  std::string batches(std::int64_t ignored) const {
    std::vector<std::int64_t> ids(kRows * kLength, 7), labels = ids;
    std::fill_n(labels.begin(), ignored * kLength, -100);
    const std::vector<std::int64_t> shape{kRows, 1, 1, kLength};
    const auto path = folder.path / ("ignored" + std::to_string(ignored) + ".safetensors");
    write_safetensors(path,
                      {{"input_ids", "I64", shape, ids.data(), ids.size() * sizeof(ids[0])},
                       {"labels", "I64", shape, labels.data(), labels.size() * sizeof(labels[0])}},
                      {});
    return path.string();
  }

  ProgramResult train_on_batches(std::int64_t ignored, const std::string& output) const {
    return assay(command("train", output,
                         {"data.path=" + batches(ignored), "data.format=batches", "data.sequence_length=16",
                          "train.micro_batch_size=1", "train.gradient_accumulation_steps=1",
                          "parallel.nproc_per_node=1", "train.max_steps=" + std::to_string(kRows)}));
  }

  /// A file that holds less than a row, and a link that leads to itself.
  std::string short_text() const {
    std::ofstream(folder.path / "short.txt") << "too short";
    return (folder.path / "short.txt").string();
  }
  std::string loop() const {
    const auto path = folder.path / "loop";
    if (!std::filesystem::is_symlink(path)) std::filesystem::create_symlink(path, path);
    return path.string();
  }

  /// A job as assay gives it, of this test's recipe.
  Json job_of_recipe(const Words& more = {}) const {
    const auto resolved = assay(Words{"validate", "--json", recipe} + more);
    return {{"kind", "train"},
            {"recipe", parse_json(resolved.out, "validate")},
            {"folder", job("run").string()},
            {"options", Json::object()}};
  }

  ProgramResult rank_with_job(const std::string& text, double seconds = kLongest) const {
    std::ofstream(folder.path / "job.json") << text;
    return run_program("/bin/sh", {"-c", "exec \"$0\" --job <\"$1\"", program("assay-rank"), folder.path / "job.json"},
                       seconds);
  }
};

// A run that trained nothing says nothing; single steps of that kind are left out.
TEST_F(Mistake, ARunInWhichNoTokenIsTrainedIsAMistakeInTheData) {
  const auto never = train_on_batches(kRows, "never");
  EXPECT_EQ(never.exit_code, 2);
  EXPECT_THAT(never.err, AllOf(HasSubstr("no token was trained in 8 steps"), HasSubstr("ignored8.safetensors")));
  EXPECT_TRUE(last_event(job("never"), 0, "end").is_null());

  const auto late = train_on_batches(kRows - 1, "late");
  EXPECT_EQ(late.exit_code, 0) << late.err;
  const auto steps = events(job("late"), 0, "step");
  ASSERT_EQ(steps.size(), 8U);
  for (const auto& step : steps) EXPECT_EQ(step["skipped"], step["step"] != 8) << step;
}

TEST_F(Mistake, DataThatOnlyTheRanksCanJudgeIsNamedByItsKeyAndNoResumeIsPromised) {
  const auto training = assay(command("train", "short", {"data.path=" + short_text()}));
  EXPECT_EQ(training.exit_code, 2);
  EXPECT_THAT(training.err, AllOf(HasSubstr("data.path " + short_text() + " holds 9 tokens"),
                                  HasSubstr("no checkpoint was saved"), Not(HasSubstr("goes on with it"))));
  const auto held_out = assay(command("train", "eval", {"data.eval_path=" + short_text(), "train.eval_interval=5"}));
  EXPECT_EQ(held_out.exit_code, 2);
  EXPECT_THAT(held_out.err,
              AllOf(HasSubstr("data.eval_path " + short_text() + " holds 9 tokens"), Not(HasSubstr("data.path "))));
}

TEST_F(Mistake, ALinkThatLeadsToItselfIsNamed) {
  const std::vector<std::pair<Words, std::string>> cases{
      {command("train", "run", {"model.path=" + loop()}), "model.path: " + loop()},
      {command("train", "run", {"data.path=" + loop()}), "data.path: " + loop()},
      {command("train", "run", {"data.eval_path=" + loop(), "train.eval_interval=5"}), "data.eval_path: " + loop()},
      {command("accept", "run", {"data.path=" + loop()}), "data.path: " + loop()},
      {{"estimate", recipe, "model.path=" + loop()}, loop()},
      {{"train", recipe, "--output", loop()}, loop()},
      {{"train", loop()}, loop()},
      {{"report", loop()}, loop()},
      {{"show", loop()}, loop()},
      {{"verify", ASSAY_SOURCE_DIR "/recipes/models/tiny", loop()}, loop()},
  };
  for (const auto& [words, path] : cases) {
    const auto result = assay(words);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(words);
    EXPECT_THAT(result.err, AllOf(HasSubstr(path), Not(HasSubstr("filesystem error")), Not(HasSubstr("internal"))));
    EXPECT_FALSE(std::filesystem::exists(run("run")));
  }
  const auto rank = run_program(program("assay-rank"), {recipe, "data.path=" + loop(), "--output", run("rank")});
  EXPECT_EQ(rank.exit_code, 2);
  EXPECT_THAT(rank.err, HasSubstr("data.path: " + loop()));
}

TEST_F(Mistake, AJobOfWrongTypesIsNamedByItsField) {
  const auto good = job_of_recipe({"parallel.nproc_per_node=1"});
  const auto with = [&](const char* key, const Json& value) {
    Json job = good;
    job[key] = value;
    return dump_json(job);
  };
  Json unresolved = good["recipe"];
  unresolved["parallel"].erase("strategy");
  const std::string options = R"({"kind":"verify","options":)";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "job on standard input: not valid JSON"},
      {"[1]", "the whole is [1], expected is an object"},
      {"{}", "kind is missing"},
      {with("kind", 3), "kind is 3, expected is train, collective, verify, dry_run, fit_search or fit_trials"},
      {with("kind", "trian"), "kind is trian, expected is"},
      {with("recipe", "r.yaml"), "recipe is \"r.yaml\", expected is a recipe"},
      {with("recipe", nullptr), "recipe is null"},
      {with("recipe", unresolved), "recipe.parallel.strategy is not resolved"},
      {with("recipe", {{"train", {{"max_steps", "ten"}}}}), "train.max_steps"},
      {with("folder", 7), "folder is 7, expected is a path"},
      {with("options", Json::array()), "options is [], expected is an object"},
      {with("options", {{"allow_change", "seed"}}), "options.allow_change is \"seed\", expected is a list of keys"},
      {R"({"kind":"dry_run","recipes":{}})", "recipes is {}, expected is a list of recipes"},
      {R"({"kind":"dry_run","recipes":[1]})", "recipes is [1], expected is a list of recipes"},
      {options + "{}}", "model is missing"},
      {options + R"({"model":1,"reference":"r"}})", "model is 1, expected is a path"},
      {options + R"({"model":"m","reference":"r","config":{}}})", "options.config is {}, expected is the text"},
      {options + R"({"model":"m","reference":"r","atol":"x"}})", "options.atol is \"x\", expected is a number or null"},
  };
  for (const auto& [text, problem] : cases) {
    const auto result = rank_with_job(text);
    EXPECT_EQ(result.exit_code, 2) << text.substr(0, 200);
    EXPECT_THAT(result.err, HasSubstr(problem));
  }
  EXPECT_EQ(rank_with_job(dump_json(good)).exit_code, 0);
}

// As assay train: two processes in one folder would write into each other's events and checkpoints.
TEST_F(Mistake, AFolderInUseIsRefusedByEveryRankAndKeptFromOthers) {
  const Words rank_words{recipe, "train.max_steps=10000", "--output", run("run").string()};
  const Words two{"launch", "--nproc-per-node", "2", "--standalone", "--", program("assay-rank")};
  std::filesystem::create_directories(run("run"));
  const FileDescriptor file(::open(run("run").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(file.get(), LOCK_EX | LOCK_NB), 0);
  const auto refused = assay(two + rank_words);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr(run("run").string() + " is in use"));
  EXPECT_FALSE(std::filesystem::exists(job("run"))) << "something was started";

  ASSERT_EQ(::flock(file.get(), LOCK_UN), 0);
  BackgroundProgram training(program("assay"), two + rank_words);
  ASSERT_TRUE(wait_for_step(training, job("run"), 1, 1)) << training.err();
  EXPECT_NE(::flock(file.get(), LOCK_EX | LOCK_NB), 0) << "the folder is free while ranks write into it";
  training.send(SIGTERM);
  training.finish(kLongest);
  EXPECT_EQ(::flock(file.get(), LOCK_EX | LOCK_NB), 0);
}

// Where the other ranks never come.
class Alone : public Mistake {
 protected:
  ProgramOptions first_of_two() const {
    return {.environment = {{"RANK", "0"},
                            {"LOCAL_RANK", "0"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(find_free_port())}}};
  }
  Words rank_words() const {
    return {"-c", "exec \"$0\" --job <\"$1\"", program("assay-rank"), (folder.path / "job.json").string()};
  }
  void write_job(const Words& more = {}) const {
    std::filesystem::create_directories(job("run") / "events");
    std::ofstream(folder.path / "job.json") << dump_json(job_of_recipe(more));
  }
};

TEST_F(Alone, ASignalEndsARankThatWaitsForTheOthers) {
  write_job();
  BackgroundProgram rank("/bin/sh", rank_words(), first_of_two());
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(event_file(job("run"), 0)) || !rank.running(); }, 60));
  rank.send(SIGTERM);
  EXPECT_EQ(rank.finish(20).exit_code, 128 + SIGTERM) << rank.err();
}

TEST_F(Alone, TheWaitForTheOthersHasAnEnd) {
  write_job({"parallel.timeout_seconds=1"});
  const auto result = run_program("/bin/sh", rank_words(), 30, first_of_two());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 0 of 2 could not join at 127.0.0.1"));
}

// Skipping is for a step now and then: a run that only skipped measured nothing.
TEST_F(Mistake, ARunOfNothingButOverflowsIsRejected) {
  for (const char* attempt : {"first", "again, when all steps are made"}) {
    const auto result = assay(command("train", "run",
                                      {"train.precision=fp16", "train.loss_scale.initial=1000000000000",
                                       "train.max_steps=3", "parallel.nproc_per_node=1"}));
    EXPECT_EQ(result.exit_code, 1) << attempt << result.err;
    EXPECT_THAT(result.err, HasSubstr("the fp16 gradients of all 3 steps overflowed")) << attempt;
  }
  EXPECT_EQ(last_event(job("run"), 0, "step")["skipped"], true);
}

// I24: the file's dtype does not choose that of the run, and what the run has is said, not what config.json says.
TEST_F(Mistake, AHalfPrecisionFileIsSaidToBeLoadedIntoFp32) {
  const auto model = folder.path / "half";
  std::filesystem::create_directory(model);
  std::filesystem::copy_file(ASSAY_SOURCE_DIR "/recipes/models/tiny/config.json", model / "config.json");
  const std::map<std::string, std::vector<std::int64_t>> block{
      {"input_layernorm", {8}},     {"post_attention_layernorm", {8}}, {"self_attn.q_proj", {8, 8}},
      {"self_attn.k_proj", {8, 8}}, {"self_attn.v_proj", {8, 8}},      {"self_attn.o_proj", {8, 8}},
      {"mlp.gate_proj", {16, 8}},   {"mlp.up_proj", {16, 8}},          {"mlp.down_proj", {8, 16}}};
  const std::vector<std::uint16_t> ones(256 * 8, 0x3F80);  // 1 in bf16
  std::vector<TensorBytes> tensors;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    std::size_t numel = 1;
    for (const auto size : shape) numel *= static_cast<std::size_t>(size);
    tensors.push_back({name + ".weight", "BF16", shape, ones.data(), numel * sizeof(ones[0])});
  };
  add("model.embed_tokens", {256, 8});
  for (const auto& [name, shape] : block) add("model.layers.0." + name, shape);
  add("model.norm", {8});
  add("lm_head", {256, 8});
  write_safetensors(model / "model.safetensors", tensors, {});
  const auto result = assay(
      command("train", "run",
              {"model.path=" + model.string(), "model.init=load", "train.max_steps=1", "parallel.nproc_per_node=1",
               "model.config={num_hidden_layers: 1, hidden_size: 8, intermediate_size: 16, num_attention_heads: 1, "
               "num_key_value_heads: 1, head_dim: 8, vocab_size: 256, tie_word_embeddings: false}"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("weights in bf16 were loaded into fp32 (train.precision fp32)"));
  EXPECT_EQ(last_event(job("run"), 0, "run")["param_dtype"], "fp32");
  const auto bytes = last_event(job("run"), 0, "run")["state_bytes_per_parameter"].get<double>();
  EXPECT_GE(bytes, 16);    // 4 + 4 + 8
  EXPECT_LE(bytes, 17.5);  // and what a small model pays for blocks of 512 bytes
}

}  // namespace
}  // namespace assay
