#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/device/device.h"
#include "harness/memory/tracking_allocator.h"
#include "tests/device/golden_model.h"

// tests/data/memory/real_allocator.csv was made by PyTorch 2.11's own eager code and its own caching allocator on a
// pretend device (compute capability 9.0, 132 multiprocessors). Here the same programs are a dry run.

namespace assay {
namespace {

using Row = std::map<std::string, std::string>;

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields(1);
  bool is_quoted = false;
  for (const char c : line) {
    if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::vector<Row> read_rows() {
  std::ifstream file(ASSAY_SOURCE_DIR "/tests/data/memory/real_allocator.csv");
  std::string line;
  std::getline(file, line);
  const auto names = split(line);
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const auto fields = split(line);
    Row row;
    for (std::size_t i = 0; i < names.size(); ++i) row[names[i]] = fields.at(i);
    rows.push_back(std::move(row));
  }
  return rows;
}

golden::Program program_of(const Row& row) {
  const auto number = [&](const char* name) { return std::stoll(row.at(name)); };
  golden::Program program;
  program.id = row.at("id");
  program.is_llama = row.at("arch") == "llama";
  program.hidden_size = number("hidden_size");
  program.num_hidden_layers = number("num_hidden_layers");
  program.num_attention_heads = number("num_attention_heads");
  program.num_key_value_heads = number("num_key_value_heads");
  program.intermediate_size = number("intermediate_size");
  program.vocab_size = number("vocab_size");
  program.tie_word_embeddings = row.at("tie_word_embeddings") == "True";
  program.sequence_length = number("sequence_length");
  program.micro_batch_size = number("micro_batch_size");
  program.gradient_accumulation = number("gradient_accumulation");
  program.policy = row.at("policy");
  program.checkpoints_blocks = row.at("activation_checkpointing") == "block";
  program.lora = row.at("lora");
  program.adapter_dtype = row.at("adapter_dtype") == "fp32" ? at::kFloat : at::kBFloat16;
  program.has_fused_norm = row.at("norm") == "fused";
  program.has_fused_adamw = row.at("adamw") == "fused";
  return program;
}

/// PyTorch's figures at the end of a phase, peaks since the one before.
struct Phase {
  std::int64_t allocated_peak = 0;
  std::int64_t allocated_after = 0;
  std::int64_t reserved_peak = 0;
  std::int64_t requested_peak = 0;
};

struct Outcome {
  bool fits = true;
  std::vector<std::map<std::string, Phase>> steps;  ///< by name of phase
  std::int64_t num_retries = 0;

  std::int64_t peak(std::size_t step, std::int64_t Phase::*figure) const {
    std::int64_t result = 0;
    for (const auto& [name, phase] : steps.at(step)) result = std::max(result, phase.*figure);
    return result;
  }
  /// Over all micro-steps, and after the last one.
  Phase phase(std::size_t step, const std::string& name) const {
    Phase result;
    for (const auto& [full_name, one] : steps.at(step)) {
      if (!full_name.starts_with(name)) continue;
      result.allocated_peak = std::max(result.allocated_peak, one.allocated_peak);
      result.allocated_after = one.allocated_after;
    }
    return result;
  }

  std::int64_t peak(std::int64_t Phase::*figure) const { return std::max(peak(0, figure), peak(1, figure)); }
};

Outcome dry_run(const golden::Program& program, const AllocatorSettings& settings) {
  install_tracking_allocators();
  const auto ledger = std::make_shared<MemoryLedger>(settings);
  const LedgerScope scope(ledger);
  const auto device = make_meta_device({.cuda = true, .compute_capability = 90});
  Outcome outcome;
  const auto mark = [&](const std::string& name) {
    if (name == "begin") {
      outcome.steps.emplace_back();
    } else {
      const auto& now = ledger->allocator().statistics();
      outcome.steps.back()[name] = {now.allocated.peak, now.allocated.current, now.reserved.peak, now.requested.peak};
    }
    ledger->allocator().reset_peaks();
  };
  try {
    golden::run(program, 2, mark);
  } catch (const c10::OutOfMemoryError&) {
    outcome.fits = false;
  }
  outcome.num_retries = ledger->allocator().statistics().num_alloc_retries;
  return outcome;
}

constexpr std::int64_t kGib = std::int64_t{1} << 30;

// More than any of the programs needs. The address space of expandable segments goes by it.
constexpr std::int64_t kLargeDeviceBytes = 4096 * kGib;

AllocatorSettings settings(const std::string& allocator, std::int64_t capacity_bytes = kLargeDeviceBytes) {
  AllocatorSettings result;
  result.capacity_bytes = capacity_bytes;
  result.expandable_segments = allocator == "expandable";
  return result;
}

class Golden : public ::testing::TestWithParam<Row> {
 protected:
  golden::Program program() const { return program_of(GetParam()); }
  const std::string& recorded(const std::string& column) const { return GetParam().at(column); }
  std::int64_t recorded_number(const std::string& column) const { return std::stoll(recorded(column)); }

  void expect_peaks(const std::string& allocator, const Outcome& outcome) const {
    for (const std::size_t step : {0U, 1U}) {
      const std::string prefix = allocator + "_s" + std::to_string(step + 1) + "_";
      EXPECT_EQ(outcome.peak(step, &Phase::requested_peak), recorded_number(prefix + "requested_peak")) << prefix;
      EXPECT_EQ(outcome.peak(step, &Phase::allocated_peak), recorded_number(prefix + "allocated_peak")) << prefix;
      EXPECT_EQ(outcome.peak(step, &Phase::reserved_peak), recorded_number(prefix + "reserved_peak")) << prefix;
    }
  }

  void expect_phases(const Outcome& outcome) const {
    for (const std::size_t step : {0U, 1U}) {
      for (const std::string name : {"forward", "backward", "optimizer"}) {
        const auto phase = outcome.phase(step, name);
        const std::string prefix = "native_s" + std::to_string(step + 1) + "_" + name + "_allocated_";
        EXPECT_EQ(phase.allocated_peak, recorded_number(prefix + "peak")) << prefix;
        EXPECT_EQ(phase.allocated_after, recorded_number(prefix + "after")) << prefix;
      }
    }
  }

  // Recorded: "oom", "fits", or where it was a near thing "fits, retries <n>, reserved <bytes>".
  void expect_on_card(const std::string& card, std::int64_t capacity_bytes, const std::string& allocator,
                      const Outcome& on_large_device) const {
    const bool has_room = on_large_device.peak(&Phase::reserved_peak) <= capacity_bytes;
    const auto outcome = has_room ? on_large_device : dry_run(program(), settings(allocator, capacity_bytes));
    const std::string& golden = recorded(card + "_" + allocator);
    SCOPED_TRACE(card + "_" + allocator + ": " + golden);
    EXPECT_EQ(outcome.fits, golden != "oom");
    long long retries = 0;
    long long reserved = 0;
    if (std::sscanf(golden.c_str(), "fits, retries %lld, reserved %lld", &retries, &reserved) != 2) return;
    EXPECT_EQ(outcome.num_retries, retries);
    EXPECT_EQ(outcome.peak(&Phase::reserved_peak), reserved);
  }
};

TEST_P(Golden, IsWhatPyTorchsAllocatorSaid) {
  for (const std::string allocator : {"native", "expandable"}) {
    const auto outcome = dry_run(program(), settings(allocator));
    expect_peaks(allocator, outcome);
    if (allocator == "native") expect_phases(outcome);
    // What PyTorch can have of cards of 24, 40 and 80 GB.
    expect_on_card("cap24", 235 * kGib / 10, allocator, outcome);
    expect_on_card("cap40", 394 * kGib / 10, allocator, outcome);
    expect_on_card("cap80", 791 * kGib / 10, allocator, outcome);
  }
}

std::string name_of(const ::testing::TestParamInfo<Row>& row) { return "id" + row.param.at("id"); }

INSTANTIATE_TEST_SUITE_P(Rows, Golden, ::testing::ValuesIn(read_rows()), name_of);

}  // namespace
}  // namespace assay
