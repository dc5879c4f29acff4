// assay estimate and assay verify from the outside.
#include <gmock/gmock.h>

#include <set>

#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "tests/end_to_end/end_to_end.h"

namespace assay {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::set<std::string> keys_of(const Json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) {
    if (!key.ends_with("reason")) keys.insert(key);
  }
  return keys;
}

using Names = std::set<std::string>;

using Collective = EndToEnd;

// 1024 x 1024 elements are no multiple of 3.
TEST_F(Collective, WorksForRanksThatDivideNothing) {
  const auto result = assay({"collective", "--nproc-per-node", "3", "--json", "--output", run("three")});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  for (int rank = 0; rank < 3; ++rank) {
    const auto event = events(job("three", "collective-1"), rank, "collective").front();
    EXPECT_EQ(event["num_wrong"], 0);
    EXPECT_GE(event["elements"], 1024 * 1024);
  }
}

class Estimate : public EndToEnd, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(NumProcesses, Estimate, testing::Values(1, 2), testing::PrintToStringParamName());

TEST_P(Estimate, HasTheContractsFieldsAndIsWhatARunTakes) {
  const Words options{"parallel.nproc_per_node=" + std::to_string(GetParam()), "train.max_steps=3"};
  const auto result = assay(Words{"estimate", recipe, "--json"} + options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto estimate = parse_json(result.out, "stdout");
  EXPECT_EQ(keys_of(estimate), (Names{"parameters", "trainable_parameters", "world_size", "formula", "formula_moment",
                                      "dry_run", "device_memory_bytes", "fits", "headroom_bytes", "remedies", "seconds",
                                      "activation_checkpointing", "device", "attention"}));
  EXPECT_EQ(keys_of(estimate["formula"]),
            (Names{"weights", "gradients", "optimizer", "activations", "communication", "overhead", "total"}));
  EXPECT_EQ(keys_of(estimate["dry_run"]),
            (Names{"peak_allocated_bytes", "peak_reserved_bytes", "by_category", "by_phase", "largest_at_peak"}));
  EXPECT_EQ(estimate["world_size"], GetParam());
  EXPECT_TRUE(estimate["fits"].is_null() && estimate["headroom_bytes"].is_null());
  EXPECT_EQ(estimate["fits_reason"], "device_memory is not stated");

  train("run", options);
  for (int rank = 0; rank < GetParam(); ++rank) {
    const auto measured = last_event(job("run"), rank, "memory");
    EXPECT_EQ(measured["measured_allocated_bytes"], estimate["dry_run"]["peak_allocated_bytes"]) << "rank " << rank;
    EXPECT_EQ(measured["measured_reserved_bytes"], estimate["dry_run"]["peak_reserved_bytes"]) << "rank " << rank;
    EXPECT_EQ(measured["by_category"], estimate["dry_run"]["by_category"]);
  }
}

// No card is needed to plan for one, and one to train on it.
TEST_P(Estimate, IsMadeForACardThatIsNotThere) {
  const Words options{"parallel.nproc_per_node=" + std::to_string(GetParam()), "device=cuda"};
  const auto of = [&](const Words& more) {
    const auto result = assay(Words{"estimate", recipe, "--json"} + options + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return parse_json(result.out, "stdout");
  };
  const auto fp32 = of({});
  EXPECT_EQ(fp32["device"], "cuda");
  EXPECT_EQ(fp32["attention"], "efficient");
  EXPECT_EQ(of({"train.precision=bf16"})["attention"], "flash");
  EXPECT_GT(fp32["dry_run"]["peak_allocated_bytes"], 32 << 20) << "the workspace of cuBLAS";
  EXPECT_EQ(fp32["dry_run"]["by_category"]["communication"], 0) << "gradients are summed in place";
  const auto refused = assay(Words{"train", recipe, "--output", run("refused")} + options);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("device: cuda is not supported by this version (supported: cpu)"));
}

TEST_F(EndToEnd, AModelThatIsNotTrainedIsEstimatedByFormula) {
  const Words model{"model.path=" ASSAY_SOURCE_DIR "/recipes/models/qwen2.5-0.5b", "model.config={}"};
  const auto result = assay(Words{"estimate", recipe, "--json"} + model);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto estimate = parse_json(result.out, "stdout");
  EXPECT_EQ(estimate["parameters"], 494'032'768);
  EXPECT_GT(estimate["formula"]["total"], 16 * 494'032'768LL);
  EXPECT_TRUE(estimate["dry_run"]["peak_allocated_bytes"].is_null());
  EXPECT_THAT(estimate["dry_run"]["reason"].get<std::string>(), HasSubstr("qwen2"));
  const auto small = assay(Words{"estimate", recipe, "--json", "device_memory=1GiB"} + model);
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_EQ(parse_json(small.out, "stdout")["fits_by"], "formula");
  const auto refused = assay(Words{"train", recipe} + model);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("by formula only"));
}

// A card that its context alone fills, and one that NCCL's buffers of many ranks would fill: no number of cards helps.
TEST_F(EndToEnd, ACardWithoutRoomForTheAllocatorFitsNothing) {
  for (const char* memory : {"device_memory=500MiB", "device_memory=2GiB"}) {
    const auto result = assay({"estimate", ASSAY_SOURCE_DIR "/bench/recipes/estimate.yaml", "--json",
                               "model.path=" ASSAY_SOURCE_DIR "/recipes/models/llama-3-8b", memory});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    const auto report = parse_json(result.out, "stdout");
    EXPECT_EQ(report["fits"], false);
    EXPECT_FALSE(report["remedies"].empty());
    for (const auto& remedy : report["remedies"]) EXPECT_EQ(remedy["fits"], false) << remedy;
  }
}

using Estimate70B = EndToEnd;

TEST_P(Estimate, EndsWithOneIfItDoesNotFit) {
  const Words words{"estimate", recipe, "--json", "parallel.nproc_per_node=" + std::to_string(GetParam())};
  const auto small = assay(words + Words{"device_memory=1MiB"});
  EXPECT_EQ(small.exit_code, 1);
  const auto report = parse_json(small.out, "stdout");
  const auto peak = report["dry_run"]["peak_reserved_bytes"].get<std::int64_t>();
  EXPECT_EQ(report["fits"], false);
  EXPECT_FALSE(report["remedies"].empty());
  for (const auto& remedy : report["remedies"]) {
    EXPECT_TRUE(remedy["change"].is_string() && remedy["cost"].is_string()) << remedy;
    EXPECT_LE(remedy["peak_bytes"].get<std::int64_t>(), peak) << remedy;  // in steps of segments
  }
  EXPECT_EQ(report["device_memory_bytes"], 1 << 20);
  EXPECT_EQ(report["headroom_bytes"], (1 << 20) - peak);
  const auto enough = assay(words + Words{"device_memory=" + std::to_string(peak)});
  EXPECT_EQ(enough.exit_code, 0);
  EXPECT_EQ(parse_json(enough.out, "stdout")["fits"], true);
  EXPECT_EQ(parse_json(enough.out, "stdout")["headroom_bytes"], 0);
}

// Guide 1 and the byte table: Llama-3-70B, sequence 4096, micro batch 1, every block checkpointed, fsdp, cards of 80
// GB. By division 14 cards hold the states; they do not hold the training.
TEST_F(Estimate70B, FitsOn24CardsAndNotOn14) {
  const auto estimate = [&](int cards) {
    return assay({"estimate", ASSAY_SOURCE_DIR "/bench/recipes/estimate.yaml", "--json",
                  "model.path=" ASSAY_SOURCE_DIR "/recipes/models/llama-3-70b", "data.sequence_length=4096",
                  "train.precision=bf16", "train.activation_checkpointing=full", "parallel.strategy=fsdp",
                  "device_memory=79GiB", "parallel.nproc_per_node=" + std::to_string(cards)});
  };
  const auto few = estimate(14);
  EXPECT_EQ(few.exit_code, 1) << few.err;
  EXPECT_EQ(parse_json(few.out, "stdout")["fits"], false);
  const auto enough = estimate(24);
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
  EXPECT_EQ(parse_json(enough.out, "stdout")["fits"], true);
}

class Verify : public EndToEnd, public testing::WithParamInterface<std::tuple<std::string, std::string>> {
 protected:
  /// A copy of one case's model with one spelling of its config.
  void copy_model(const std::string& name, const std::string& config) {
    source = fs::path(ASSAY_SOURCE_DIR "/tests/data/models") / name;
    fs::create_directory(model);
    fs::copy_file(source / config, model / "config.json");
    fs::copy_file(source / "model.safetensors", model / "model.safetensors");
  }

  /// Adds to the first number of a tensor in the copy.
  void change_weight(const std::string& name, float by) {
    const auto path = model / "model.safetensors";
    const auto place = static_cast<std::streamoff>(place_of_tensor(path, name).first);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    float value = 0;
    file.seekg(place);
    file.read(reinterpret_cast<char*>(&value), sizeof value);
    value += by;
    file.seekp(place);
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
    ASSERT_TRUE(file.good());
  }

  ProgramResult verify(const std::string& reference, const Words& more = {}) const {
    return assay(Words{"verify", model, reference} + more);
  }

  fs::path source;
  const fs::path model = folder.path / "model";
};
INSTANTIATE_TEST_SUITE_P(Models, Verify,
                         testing::Combine(testing::Values("llama_gqa", "llama_tied_rope3"),
                                          testing::Values("config.json", "config_legacy.json")),
                         [](const auto& values) {
                           const auto& config = std::get<1>(values.param);
                           return std::get<0>(values.param) + "_" + config.substr(0, config.find('.'));
                         });

TEST_P(Verify, EqualsWhatTransformersMade) {
  copy_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto result = verify(source / "expected.safetensors", {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto report = parse_json(result.out, "stdout");
  EXPECT_EQ(report["equal_within"], true);
  const auto facts = parse_json(read_text_file(source / "case.json"), "case.json");
  // The case's tolerance in words: "logits abs 5e-5, loss abs 1e-5, each gradient relative L2 error 1e-4".
  EXPECT_NEAR(report["loss"].get<double>(), facts["loss"].get<double>(), 1e-5);
  EXPECT_NEAR(report["reference_loss"].get<double>(), facts["loss"].get<double>(), 1e-6);
  const auto shown = parse_json(assay({"show", "--json", source / "expected.safetensors"}).out, "show");
  Names expected, found;
  for (const auto& tensor : shown["tensors"]) expected.insert(tensor["name"].get<std::string>());
  for (const char* input : {"input_ids", "labels", "loss"}) expected.erase(input);
  std::erase_if(expected, [](const auto& name) { return name != "logits" && !name.starts_with("grad."); });
  for (const auto& tensor : report["tensors"]) {
    const auto name = tensor["name"].get<std::string>();
    found.insert(name);
    for (const char* key : {"max_abs_error", "max_rel_error", "relative_l2_error", "cosine"})
      EXPECT_TRUE(tensor[key].is_number()) << name << key;
    const bool absolute = name == "logits";
    EXPECT_LE(tensor[absolute ? "max_abs_error" : "relative_l2_error"].get<double>(), absolute ? 5e-5 : 1e-4) << name;
    EXPECT_NEAR(tensor["cosine"].get<double>(), 1, 1e-6) << name;
  }
  EXPECT_EQ(found, expected);
}

TEST_P(Verify, OneChangedWeightIsFound) {
  copy_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  change_weight("model.norm.weight", 0.01F);
  const auto result = verify(source / "expected.safetensors", {"--json"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_EQ(parse_json(result.out, "stdout")["equal_within"], false);
}

TEST_P(Verify, AMalformedReferenceIsAMistake) {
  copy_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto reference = folder.path / "reference.safetensors";
  fs::copy_file(source / "expected.safetensors", reference);
  fs::resize_file(reference, fs::file_size(reference) - 8);
  const auto cut = verify(reference);
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_THAT(cut.err, HasSubstr(reference.string()));
  EXPECT_EQ(cut.out, "");
  // A safetensors file, but none with input_ids.
  const auto other = verify(source / "model.safetensors");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("input_ids"));
}

class OneVerify : public Verify {
 protected:
  OneVerify() { copy_model("llama_gqa", "config.json"); }

  const fs::path reference = folder.path / "reference.safetensors";
};

TEST_F(OneVerify, ReferencesWithoutATokenAreMistakes) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2, 0}, {0, 24}}) {
    write_safetensors(reference, {{"input_ids", "I64", shape}, {"labels", "I64", shape}}, {});
    const auto result = verify(reference);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(reference.string() + " holds no token"));
  }
}

// What transformers makes of the same model in bf16 (tests/data/models/llama_gqa/case.json) is not what it makes in
// fp32.
TEST_F(OneVerify, ABf16ReferenceHasTolerancesOfItsOwn) {
  const SafetensorsFile inputs(source / "expected.safetensors"), outputs(source / "expected_bf16.safetensors");
  const auto tensor = [](const SafetensorsFile& file, const std::string& name, const std::string& as) -> TensorBytes {
    const auto* info = file.find(name);
    return {as, info->dtype, info->shape, file.bytes(*info).data(), info->size_bytes()};
  };
  write_safetensors(reference,
                    {tensor(inputs, "input_ids", "input_ids"), tensor(inputs, "labels", "labels"),
                     tensor(inputs, "loss", "loss"), tensor(outputs, "logits_bf16", "logits")},
                    {});
  const auto result = verify(reference, {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto report = parse_json(result.out, "stdout");
  EXPECT_EQ(report["tolerances"]["dtype"], "BF16");
  const auto facts = parse_json(read_text_file(source / "case.json"), "case.json");
  const auto& logits = report["tensors"][0];
  EXPECT_NEAR(logits["max_abs_error"].get<double>(), facts["bf16"]["diff_to_fp32"]["max_abs"].get<double>(), 1e-4);
  EXPECT_GT(logits["max_rel_error"].get<double>(), 1) << "of single logits near 0";
  EXPECT_LT(logits["relative_l2_error"].get<double>(), 0.1);
  EXPECT_EQ(verify(reference, {"--atol", "5e-5"}).exit_code, 1);
}

}  // namespace
}  // namespace assay
