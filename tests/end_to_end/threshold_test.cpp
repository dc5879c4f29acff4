// assay threshold from the outside: three keys, three models, one rank and two sharded ones.
#include <gmock/gmock.h>

#include <set>

#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

struct Model {
  const char* name;
  Words options;
};

const Model kModels[] = {
    {"Gqa", {"model.path=" ASSAY_SOURCE_DIR "/tests/data/models/llama_gqa", "model.config={}"}},
    {"TiedBf16",
     {"model.path=" ASSAY_SOURCE_DIR "/tests/data/models/llama_tied_rope3", "model.config={}", "train.precision=bf16"}},
    {"TinyCheckpointed", {"train.activation_checkpointing=full"}}};

struct Key {
  const char* name;
  const char* capacity[3];  ///< by model; with 10 MiB all segments are small ones
  Words options;
};

const Key kKeys[] = {{"train.micro_batch_size", {"32MiB", "10MiB", "10MiB"}, {}},
                     {"data.sequence_length", {"32MiB", "10MiB", "10MiB"}, {"train.micro_batch_size=64"}},
                     {"model.config.num_hidden_layers", {"22MiB", "10MiB", "10MiB"}, {}}};

class Threshold : public EndToEnd, public testing::WithParamInterface<std::tuple<int, int, int>> {
 protected:
  Words threshold(const std::string& output, const Words& more) const {
    return command("threshold", output, Words{"--json", "--quiet"} + more);
  }
};

std::string name_of_case(const testing::TestParamInfo<std::tuple<int, int, int>>& info) {
  const auto [model, key, ranks] = info.param;
  const std::string name = kKeys[key].name;
  return std::string(kModels[model].name) + "_" + name.substr(name.rfind('.') + 1) + "_" + std::to_string(ranks);
}

INSTANTIATE_TEST_SUITE_P(All, Threshold,
                         testing::Combine(testing::Range(0, 3), testing::Range(0, 3), testing::Values(1, 2)),
                         name_of_case);

TEST_P(Threshold, IsPredictedAndFoundTwice) {
  const auto [model, key, ranks] = GetParam();
  Words options{"--vary", kKeys[key].name, std::string("device_memory=") + kKeys[key].capacity[model],
                "parallel.nproc_per_node=" + std::to_string(ranks)};
  if (ranks > 1) options.push_back("parallel.strategy=fsdp");
  const auto result = assay(threshold("run", options + kKeys[key].options + kModels[model].options));
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const auto report = parse_json(result.out, "stdout");
  EXPECT_EQ(report["key"], kKeys[key].name);
  EXPECT_EQ(report["found"], report["predicted"]);
  EXPECT_EQ(report["found_again"], report["predicted"]);
  EXPECT_EQ(report["equal"], true);
  const auto last = report["predicted"].get<std::int64_t>();
  EXPECT_GE(last, 2);
  EXPECT_LE(last, 30);

  std::set<std::int64_t> measured;
  for (const auto& point : report["curve"]) {
    const auto value = point["value"].get<std::int64_t>();
    EXPECT_EQ(point["fits"], value <= last) << point;
    if (point["measured_fits"].is_null()) continue;
    measured.insert(value);
    EXPECT_EQ(point["measured_fits"], value <= last) << point;
    EXPECT_LE(point["measured_reserved_bytes"], report["capacity_bytes"]) << point;
    if (value > last) continue;
    EXPECT_EQ(point["measured_allocated_bytes"], point["predicted_allocated_bytes"]) << point;
    EXPECT_EQ(point["measured_reserved_bytes"], point["predicted_reserved_bytes"]) << point;
  }
  EXPECT_EQ(measured, (std::set<std::int64_t>{last, last + 1}));

  EXPECT_EQ(parse_json(read_text_file(run("run") / "threshold.json"), "threshold.json"), report);
  for (const char* name : {"threshold-1", "threshold-2"}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto checks = events(job("run", name), rank, "check");
      ASSERT_EQ(checks.size(), 5U);  // a normal step, two trials, a normal step, the answer
      for (const auto place : {0U, 3U}) {
        EXPECT_EQ(checks[place]["name"], "normal_step");
        EXPECT_EQ(checks[place]["allocated_bytes"], 0);
      }
    }
  }
}

class ThresholdAnswer : public EndToEnd {
 protected:
  ProgramResult ask(const std::string& key, const Words& more) const {
    return assay(Words{"threshold", recipe, "--vary", key, "--quiet", "--predict-only"} + more);
  }
};

TEST_F(ThresholdAnswer, KeysThatCannotBeVariedAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"train.micro_batch_sise", "did you mean train.micro_batch_size?"},
      {"train", "is a section"},
      {"train.precision", "is no whole number"},
      {"optimizer.learning_rate", "is no whole number"},
      {"parallel.nproc_per_node", "another set of ranks"},
      {"model.config.rms_norm_eps", "is 1e-05, which is no whole number"},
      {"model.config.num_layers", "is not in "},
      {"train.global_batch_size", "is not micro_batch_size"},
      {"seed", "no limit up to 1048576"},
      {"data.sequence_length", "no limit by memory up to 512"},
      {"model.config.num_attention_heads", "--step N"},
  };
  for (const auto& [key, words] : cases) {
    const auto result = ask(key, {"device_memory=8GiB"});
    EXPECT_EQ(result.exit_code, 2) << key << result.out;
    EXPECT_THAT(result.err, HasSubstr(key));
    EXPECT_THAT(result.err, HasSubstr(words)) << key;
  }
  const auto no_capacity = ask("train.micro_batch_size", {});
  EXPECT_EQ(no_capacity.exit_code, 2);
  EXPECT_THAT(no_capacity.err, HasSubstr("device_memory=80GiB"));
  const auto no_key = assay({"threshold", recipe});
  EXPECT_EQ(no_key.exit_code, 2);
  EXPECT_THAT(no_key.err, HasSubstr("--vary KEY"));
  EXPECT_EQ(ask("train.micro_batch_size", {"device_memory=8GiB", "--step", "0"}).exit_code, 2);
}

TEST_F(ThresholdAnswer, ACapacityForNothingIsARejection) {
  const auto result = ask("train.micro_batch_size", {"device_memory=1MiB"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no value of train.micro_batch_size fits: train.micro_batch_size=1 would reserve"));
}

// For a card that is not here: what fits is by the dry run that `estimate` shows, and the next multiple does not fit.
TEST_F(ThresholdAnswer, APredictionForCudaAgreesWithTheEstimate) {
  const Words plan{"device=cuda", "device_memory=1GB", "train.precision=bf16", "parallel.nproc_per_node=1",
                   "model.config.max_position_embeddings=1048576"};
  const auto result = ask("data.sequence_length", plan + Words{"--step", "1024", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = parse_json(result.out, "stdout");
  EXPECT_TRUE(report["found"].is_null() && report["found_again"].is_null() && report["equal"].is_null());
  EXPECT_EQ(report["equal_reason"], "only predicted");
  const auto last = report["predicted"].get<std::int64_t>();
  EXPECT_EQ(last % 1024, 0);
  for (const std::int64_t value : {last, last + 1024}) {
    const auto estimate =
        assay(Words{"estimate", recipe, "--json", "data.sequence_length=" + std::to_string(value)} + plan);
    EXPECT_EQ(estimate.exit_code, value == last ? 0 : 1) << estimate.err;
  }
}

TEST_F(ThresholdAnswer, ARankThatIsKilledIsNoAnswer) {
  BackgroundProgram program(
      EndToEnd::program("assay"),
      command("threshold", "run",
              {"--vary", "train.micro_batch_size", "device_memory=512MiB", "--quiet", "parallel.strategy=fsdp"}));
  const auto events_of_job = job("run", "threshold-1");
  ASSERT_TRUE(
      wait_until([&] { return !last_event(events_of_job, 1, "check").is_null() || !program.running(); }, kLongest));
  const auto rank = last_event(events_of_job, 1, "run");
  ASSERT_TRUE(rank.is_object());
  ::kill(rank["pid"].get<int>(), SIGKILL);
  const auto result = program.finish(kLongest);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("SIGKILL"));
  EXPECT_FALSE(fs::exists(run("run") / "threshold.json"));
}

}  // namespace
}  // namespace assay
