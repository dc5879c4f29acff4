// assay accept from the outside: the verdict, its exit code, and the evidence in the run folder.
#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// run_program in another folder.
ProgramResult run_in(const std::filesystem::path& folder, const std::string& program, const Words& arguments) {
  ProgramOptions options;
  options.folder = folder;
  return run_program(program, arguments, 110, options);
}

class Accept : public EndToEnd {
 protected:
  Json report(const std::string& output) const {
    return parse_json(read_text_file(run(output) / "report.json"), "report.json");
  }

  /// The lines of results.jsonl by the name of the check.
  std::map<std::string, Json> results(const std::string& output) const {
    std::map<std::string, Json> found;
    for (const auto& line : split_lines(read_text_file(run(output) / "results.jsonl"))) {
      auto result = parse_json(line, "results.jsonl");
      found[result.at("check").get<std::string>()] = result;
    }
    return found;
  }
};

/// Field names of an object as the contract lists them, each measured or null with a reason beside it. Returns the
/// nulls.
std::set<std::string> nulls_of(const Json& object, const std::vector<std::string>& fields) {
  std::set<std::string> nulls;
  for (const auto& field : fields) {
    if (!object.contains(field)) {
      ADD_FAILURE() << field << " is missing in " << object.dump().substr(0, 300);
    } else if (object[field].is_null()) {
      nulls.insert(field);
      EXPECT_GT(object.value(field + "_reason", "").size(), 5U) << field << " is null without a reason";
    }
  }
  return nulls;
}

void expect_full_report(const Json& report) {
  using Names = std::set<std::string>;
  EXPECT_EQ(nulls_of(report, {"verdict", "exit_code", "recipe", "checks", "memory", "throughput", "loss", "utilization",
                              "checkpoint", "started", "ended", "versions"}),
            Names());
  ASSERT_EQ(report["memory"].size(), 2U);
  ASSERT_EQ(report["utilization"].size(), 2U);
  for (int rank = 0; rank < 2; ++rank) {
    const Json& memory = report["memory"][static_cast<std::size_t>(rank)];
    EXPECT_EQ(nulls_of(memory, {"rank", "formula_bytes", "dry_run_allocated_bytes", "dry_run_reserved_bytes",
                                "measured_allocated_bytes", "measured_reserved_bytes", "device_used_bytes",
                                "by_category", "by_phase"}),
              (Names{"device_used_bytes"}));
    EXPECT_EQ(memory["rank"], rank);
    EXPECT_EQ(memory["measured_allocated_bytes"], memory["dry_run_allocated_bytes"]);
    EXPECT_EQ(memory["measured_reserved_bytes"], memory["dry_run_reserved_bytes"]);
    std::int64_t sum = 0;
    for (const auto& [category, bytes] : memory["by_category"].items()) sum += bytes.get<std::int64_t>();
    EXPECT_EQ(sum, memory["measured_allocated_bytes"]) << "by_category is what was alive at the peak";
    std::int64_t largest = 0;
    for (const auto& [phase, bytes] : memory["by_phase"].items())
      largest = std::max(largest, bytes.get<std::int64_t>());
    EXPECT_EQ(largest, memory["measured_allocated_bytes"]) << "by_phase is the peak of each phase";

    const Json& utilization = report["utilization"][static_cast<std::size_t>(rank)];
    EXPECT_EQ(nulls_of(utilization, {"rank", "compute_share", "ceiling_fraction", "gpu_percent", "power_watts"}),
              (Names{"gpu_percent", "power_watts"}));
  }
  EXPECT_EQ(nulls_of(report["throughput"], {"tokens_per_second", "tokens_per_second_per_gpu", "model_flops_per_token",
                                            "flops_convention", "mfu"}),
            Names{"mfu"});
  EXPECT_NEAR(report["throughput"]["tokens_per_second"].get<double>(),
              2 * report["throughput"]["tokens_per_second_per_gpu"].get<double>(), 1);
  EXPECT_EQ(nulls_of(report["loss"], {"first", "last", "slope"}), Names());
  EXPECT_LT(report["loss"]["last"].get<double>(), report["loss"]["first"].get<double>());
  EXPECT_EQ(
      nulls_of(report["checkpoint"], {"save_seconds", "bytes", "bytes_per_second", "restore_seconds", "resume_equal"}),
      Names());
  EXPECT_EQ(report["checkpoint"]["resume_equal"], true);
}

void expect_full_results(const std::map<std::string, Json>& results, const Json& report) {
  EXPECT_EQ(results.size(), report["checks"].size());
  for (const auto& [name, result] : results) {
    for (const char* key : {"check", "stage", "status", "measured", "limit", "unit", "reason", "ranks", "evidence",
                            "seconds", "ran", "healthy", "action"}) {
      EXPECT_TRUE(result.contains(key)) << name << " has no " << key;
    }
    EXPECT_THAT(name, StartsWith(result["stage"].get<std::string>() + "."));
    EXPECT_THAT(result["status"], testing::AnyOf("pass", "skip")) << result;
  }
  for (const char* check :
       {"load", "precision", "shape", "forward_backward", "accumulate_update", "save", "resume", "all_ranks"}) {
    ASSERT_TRUE(results.contains(std::string("train.") + check)) << check;
    EXPECT_EQ(results.at(std::string("train.") + check)["status"], "pass");
  }
}

/// What the folder promises: checksums of every file, links, and a recipe that loads again.
void expect_whole_folder(const std::filesystem::path& folder, const std::string& recipe) {
  const auto sums = run_in(folder, "sha256sum", {"--check", "--strict", "--quiet", "SHA256SUMS"});
  EXPECT_EQ(sums.exit_code, 0) << sums.out << sums.err;
  std::size_t num_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_symlink() && entry.is_regular_file()) ++num_files;
  }
  EXPECT_EQ(split_lines(read_text_file(folder / "SHA256SUMS")).size() + 1, num_files);
  for (const char* name : {"events", "checkpoints"}) {
    EXPECT_EQ(std::filesystem::read_symlink(folder / name), std::filesystem::path("jobs/train-1") / name);
    EXPECT_TRUE(std::filesystem::is_directory(folder / name));
  }
  const std::string assay = ASSAY_BINARY_DIR "/assay";
  const auto again = run_program(assay, {"validate", "--json", folder / "recipe.yaml"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, run_program(assay, {"validate", "--json", recipe}).out);
}

TEST_F(Accept, EveryStrategyIsAccepted) {
  for (const char* words : {"parallel.strategy=zero1 train.precision=bf16",
                            "parallel.strategy=zero2 train.precision=fp16 train.activation_checkpointing=selective",
                            "parallel.strategy=fsdp train.precision=pure_bf16 train.activation_checkpointing=full"}) {
    const auto output = "run" + std::to_string(std::hash<std::string>()(words));
    Words more;
    std::istringstream text(words);
    for (std::string word; text >> word;) more.push_back(word);
    const auto result = assay(command("accept", output, more));
    ASSERT_EQ(result.exit_code, 0) << words << "\n" << result.out << result.err;
    const auto written = report(output);
    EXPECT_EQ(written["verdict"], "accepted");
    for (const auto& row : written["memory"])
      EXPECT_EQ(row["measured_allocated_bytes"], row["dry_run_allocated_bytes"]) << words;
    const Json& checkpointing = written["activation_checkpointing"];
    const bool on = std::string(words).find("checkpointing") != std::string::npos;
    EXPECT_EQ(checkpointing["saved_bytes"].is_null(), !on) << checkpointing;
    EXPECT_EQ(checkpointing["recompute_seconds"].is_null(), !on) << checkpointing;
  }
}

TEST_F(Accept, AGoodMachineIsAcceptedWithAllTheEvidence) {
  const auto result = assay(command("accept", "run"));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, StartsWith("accepted: small"));
  const auto written = report("run");
  EXPECT_EQ(written["verdict"], "accepted");
  EXPECT_EQ(written["exit_code"], 0);
  expect_full_report(written);
  expect_full_results(results("run"), written);
  expect_whole_folder(run("run"), recipe);
}

TEST_F(Accept, TheDefaultRecipeIsAcceptedAndPrintsItsReport) {
  const auto result = run_in(ASSAY_SOURCE_DIR, program("assay"), {"accept", "--json", "--output", run("run")});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto printed = parse_json(result.out, "stdout");
  EXPECT_EQ(printed, report("run"));
  EXPECT_EQ(printed["recipe"]["name"], "tiny_cpu");
  expect_full_report(printed);
}

TEST_F(Accept, NumbersThatAreNotFiniteRejectAndNameRankAndStep) {
  // With weight decay each step multiplies the weights by 1 - 1000 * 0.1.
  const auto result = assay(command("accept", "run", {"optimizer.learning_rate=1000"}));
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_EQ(report("run")["verdict"], "rejected");
  const auto job = results("run").at("train.job");
  EXPECT_EQ(job["status"], "fail");
  EXPECT_THAT(job["reason"].get<std::string>(),
              ContainsRegex("rank [01] on .*step [0-9]+ is not finite.*first on rank [01]: the "));
  EXPECT_EQ(job["ranks"].size(), 1U);
  EXPECT_EQ(results("run").at("utilization.stage")["status"], "skip");
}

TEST_F(Accept, TooSmallAMemoryRejectsBeforeAnythingStarts) {
  const auto result = assay(command("accept", "run", {"device_memory=1MiB"}));
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_EQ(report("run")["verdict"], "rejected");
  const auto found = results("run");
  EXPECT_EQ(found.at("estimate.fits")["status"], "fail");
  EXPECT_EQ(found.at("estimate.fits")["limit"], 1 << 20);
  for (const char* stage : {"collective.stage", "single.stage", "train.stage", "memory.stage", "utilization.stage"}) {
    EXPECT_EQ(found.at(stage)["status"], "skip");
    EXPECT_EQ(found.at(stage)["ran"], false);
  }
  std::vector<std::string> jobs;
  for (const auto& entry : std::filesystem::directory_iterator(run("run") / "jobs"))
    jobs.push_back(entry.path().filename());
  EXPECT_THAT(jobs, ElementsAre("estimate-1"));
}

// The capacity that the dry run found is enough for the run itself, to the byte.
TEST_F(Accept, ExactlyThePlannedMemoryIsEnough) {
  const auto estimate = assay({"estimate", recipe, "--json"});
  const auto dry_run = parse_json(estimate.out, "estimate")["dry_run"];
  const auto peak = dry_run["peak_reserved_bytes"].get<std::int64_t>();
  const auto result = assay(command(
      "accept", "run", {"device_memory=" + std::to_string(peak), "train.max_steps=8", "checkpoint.interval=4"}));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(results("run").at("memory.capacity")["measured"], peak);
  const auto too_little = dry_run["peak_allocated_bytes"].get<std::int64_t>() - 1;
  const auto less = assay(command("accept", "less", {"device_memory=" + std::to_string(too_little)}));
  EXPECT_EQ(less.exit_code, 1);
}

TEST_F(Accept, TenMistakesAreToldAndNothingIsStartedOrMade) {
  const auto path = folder.path / "ten.yaml";
  std::ofstream(path)
      << "seeds: 3\nmode: fool\nmodel: {path: 3}\ndata:\n  format: synthetic\n  max_seq_length: 64\ntrain:\n"
         "  micro_batch_size: -1\n  max_steps: 010\n  eval_interval: [1]\n"
         "checkpoint: {save_at_end: yes, keep_latest: 1}\n<<: {seed: 1}\n";
  // Alone in a folder: it could start no rank, and would say so first.
  std::filesystem::copy_file(program("assay"), folder.path / "assay");
  const auto result = run_program(folder.path / "assay", {"accept", path, "--output", run("run")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  const auto lines = split_lines(result.err);
  ASSERT_EQ(lines.size(), 11U) << result.err;
  EXPECT_EQ(lines[0], "assay: 10 mistakes in the recipe:");
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i], testing::MatchesRegex(path.string() + ":[0-9]+:[0-9]+: .+"));
  }
  EXPECT_FALSE(std::filesystem::exists(run("run")));
}

}  // namespace
}  // namespace assay
