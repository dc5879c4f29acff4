#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "tests/support/processes.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_folder.h"

namespace assay {

using Words = std::vector<std::string>;

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// A recipe of a small model in a temporary folder, and the real programs. Each test also fails if a process is left.
class EndToEnd : public testing::Test {
 protected:
  static constexpr double kLongest = 110;  ///< seconds for one program; a wait of that length is a failure

  EndToEnd() {
    adopt_orphans();
    std::filesystem::copy_file(ASSAY_SOURCE_DIR "/LICENSE", folder.path / "text.txt");
    std::ofstream(recipe) << "name: small\n"
                             "model:\n  path: " ASSAY_SOURCE_DIR
                             "/recipes/models/tiny\n"
                             "  config: {num_hidden_layers: 2, hidden_size: 64, intermediate_size: 128, head_dim: 16}\n"
                             "tokenizer: {path: bytes}\n"
                             "data: {path: "
                          << (folder.path / "text.txt").string()
                          << ", sequence_length: 64}\n"
                             "train: {micro_batch_size: 2, gradient_accumulation_steps: 2, max_steps: 20}\n"
                             "optimizer: {learning_rate: 3e-3}\n"
                             "parallel: {nproc_per_node: 2}\n"
                             "checkpoint: {interval: 10}\n"
                             "accept: {limits: " ASSAY_SOURCE_DIR "/recipes/limits/cpu.yaml}\n";
  }

  ~EndToEnd() override { kill_children(); }

  void TearDown() override { EXPECT_THAT(living_children(), testing::IsEmpty()) << "processes are left"; }

  static ProgramResult assay(const Words& arguments) { return run_program(program("assay"), arguments, kLongest); }

  static std::string program(const std::string& name) { return ASSAY_BINARY_DIR "/" + name; }

  /// `assay <command> RECIPE <more> --output <name>`; run folders are below this test's folder.
  Words command(const std::string& name, const std::string& output, const Words& more = {}) const {
    return Words{name, recipe} + more + Words{"--output", run(output).string()};
  }

  std::filesystem::path run(const std::string& output) const { return folder.path / output; }
  std::filesystem::path job(const std::string& output, const std::string& name = "train-1") const {
    return run(output) / "jobs" / name;
  }

  /// Trains to the end and expects exit code 0.
  void train(const std::string& output, const Words& more = {}) {
    const auto result = assay(command("train", output, more));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  /// Waits until both this step and what follows it, its event, are there. False if the program ends before.
  static bool wait_for_step(BackgroundProgram& program, const std::filesystem::path& job, int rank, int step);

  TemporaryFolder folder;
  const std::string recipe = (folder.path / "small.yaml").string();
};

/// The file that the processes of a job write: of a rank, or of the launcher (-1).
inline std::filesystem::path event_file(const std::filesystem::path& job, int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank_%05d.jsonl", rank);
  return job / "events" / (rank < 0 ? "launcher.jsonl" : name);
}

/// Events of one kind, in order; of one attempt, or (0) of all.
inline std::vector<Json> events(const std::filesystem::path& job, int rank, const std::string& kind, int attempt = 0) {
  std::vector<Json> found;
  for (auto& event : read_events(event_file(job, rank))) {
    if (event["kind"] == kind && (attempt == 0 || event["attempt"] == attempt)) found.push_back(std::move(event));
  }
  return found;
}

/// Where the bytes of a tensor begin and end in a safetensors file.
inline std::pair<std::size_t, std::size_t> place_of_tensor(const std::filesystem::path& path, const std::string& name) {
  const auto file = read_text_file(path);
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof header_size);
  const auto begin = sizeof header_size + header_size;
  const auto header = parse_json(std::string_view(file).substr(sizeof header_size, header_size), path.string());
  const Json& offsets = header.at(name).at("data_offsets");
  return {begin + offsets[0].get<std::size_t>(), begin + offsets[1].get<std::size_t>()};
}

/// The last event of that kind; null if there is none.
inline Json last_event(const std::filesystem::path& job, int rank, const std::string& kind, int attempt = 0) {
  const auto found = events(job, rank, kind, attempt);
  return found.empty() ? Json() : found.back();
}

/// One field of all steps as the text that is in the file, by step; of two attempts at a step the later one's.
inline std::map<int, std::string> by_step(const std::filesystem::path& job, int rank, const std::string& field,
                                          int first = 1) {
  std::map<int, std::string> values;
  for (const auto& event : events(job, rank, "step")) {
    if (event["step"] >= first)
      values[event["step"].get<int>()] = event.contains(field) ? event[field].dump() : "missing";
  }
  return values;
}

inline bool EndToEnd::wait_for_step(BackgroundProgram& program, const std::filesystem::path& job, int rank, int step) {
  auto seen = [&] {
    const auto last = last_event(job, rank, "step");
    return !last.is_null() && last["step"] >= step;
  };
  return wait_until([&] { return seen() || !program.running(); }, kLongest) && program.running();
}

/// All that the training ended with is the same on every rank, bit for bit: losses, norms, learning rates, state,
/// samples, and the files of the last checkpoint (parameters, moments, random state).
inline void expect_same_training(const std::filesystem::path& straight, const std::filesystem::path& other,
                                 int world_size, int max_steps = 20) {
  for (int rank = 0; rank < world_size; ++rank) {
    for (const char* field : {"loss", "grad_norm", "learning_rate", "tokens", "loss_tokens"}) {
      const auto expected = by_step(straight, rank, field);
      ASSERT_EQ(expected.size(), static_cast<std::size_t>(max_steps));
      EXPECT_EQ(by_step(other, rank, field), expected) << field << " of rank " << rank;
    }
    for (const char* field : {"state_hash", "samples_used", "samples_unused", "exit_code"}) {
      EXPECT_EQ(last_event(other, rank, "end")[field], last_event(straight, rank, "end")[field]) << field;
    }
    char file[64];
    std::snprintf(file, sizeof file, "checkpoints/step_%08d/rank_%05d.safetensors", max_steps, rank);
    EXPECT_EQ(sha256_of_file(other / file), sha256_of_file(straight / file)) << file;
  }
}

}  // namespace assay
