#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "harness/launch/rendezvous.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/trainer_run.h"

namespace assay {

inline constexpr std::int64_t kLength = 20;

inline ModelConfig small_job_config() {
  ModelConfig config;
  config.vocab_size = 256;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.initializer_range = 0.2;  // losses that differ from row to row
  return config;
}

// A row whose first `trained` positions after the start are trained, the others ignored.
inline Row row_with(std::int64_t trained, std::uint32_t seed) {
  Row row;
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::int64_t i = 0; i < kLength; ++i) {
    state = state * 1664525U + 1013904223U;
    row.input_ids.push_back((state >> 16U) % 256U);
    row.labels.push_back(i >= 1 && i <= trained ? row.input_ids.back() : kIgnoredLabel);
  }
  return row;
}

inline std::vector<Row> rows_with(const std::vector<std::int64_t>& trained) {
  std::vector<Row> rows;
  for (const auto count : trained) rows.push_back(row_with(count, static_cast<std::uint32_t>(rows.size())));
  return rows;
}

// How a job cuts its rows, in sample order, into steps, micro-steps and ranks.
struct Cut {
  int world_size = 1;
  std::int64_t micro_batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t steps = 1;
};

// Constant rate, no decay, no clipping: what is left of a step is its gradient.
inline Recipe recipe_of(const Cut& cut) {
  Recipe recipe;
  recipe.model.attention = AttentionChoice::flash;
  recipe.data.sequence_length = kLength;
  recipe.train.micro_batch_size = cut.micro_batch;
  recipe.train.gradient_accumulation_steps = cut.accumulation;
  recipe.train.max_steps = cut.steps;
  recipe.train.max_grad_norm = 0;
  recipe.optimizer.weight_decay = 0;
  recipe.schedule = {ScheduleName::constant, 0, 0, WarmupConvention::transformers};
  recipe.parallel.nproc_per_node = cut.world_size;
  recipe.parallel.strategy = cut.world_size > 1 ? StrategyName::ddp : StrategyName::none;
  return recipe;
}

inline Recipe batches_recipe(const Cut& cut, const std::vector<Row>& rows, const std::filesystem::path& path) {
  const std::vector<std::int64_t> shape{cut.steps, cut.accumulation, cut.world_size * cut.micro_batch, kLength};
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> labels;
  for (const auto& row : rows) {
    input_ids.insert(input_ids.end(), row.input_ids.begin(), row.input_ids.end());
    labels.insert(labels.end(), row.labels.begin(), row.labels.end());
  }
  const std::size_t size = input_ids.size() * sizeof(std::int64_t);
  write_safetensors(
      path, {{"input_ids", "I64", shape, input_ids.data(), size}, {"labels", "I64", shape, labels.data(), size}}, {});
  Recipe recipe = recipe_of(cut);
  recipe.data.format = DataFormat::batches;
  recipe.data.path = {{path.string(), 1}};
  return recipe;
}

// What one rank holds at the end of its job.
struct Outcome {
  std::vector<StepRecord> records;
  std::vector<at::Tensor> initial, parameters, gradients;
  Progress progress;
};

inline std::vector<at::Tensor> copies(Trainer& trainer, const std::function<at::Tensor(const Parameter&)>& part) {
  std::vector<at::Tensor> result;
  for (auto& unit : trainer.model().units()) {
    for (auto& parameter : unit.parameters) result.push_back(part(parameter).detach().clone());
  }
  return result;
}

inline void take_steps(Trainer& trainer, std::int64_t count, Outcome& outcome) {
  const auto value = [](const Parameter& parameter) { return parameter.value; };
  if (outcome.initial.empty()) outcome.initial = copies(trainer, value);
  for (std::int64_t step = 0; step < count; ++step) outcome.records.push_back(trainer.step());
  outcome.parameters = copies(trainer, value);
  outcome.gradients = copies(trainer, [](const Parameter& parameter) { return parameter.value.grad(); });
  outcome.progress = trainer.progress();
}

inline std::vector<Outcome> run_all_ranks(
    const Cut& cut, const std::vector<Row>& rows, const std::function<void(Recipe&)>& change = [](Recipe&) {}) {
  const TemporaryFolder folder;
  Recipe recipe = batches_recipe(cut, rows, folder.path / "batches.safetensors");
  change(recipe);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(cut.world_size));
  run_trainers(recipe, small_job_config(), cut.world_size, find_free_port(), [&](TestRank rank) {
    take_steps(rank.trainer, cut.steps, outcomes[static_cast<std::size_t>(rank.rank)]);
  });
  return outcomes;
}

inline Outcome run(
    const Cut& cut, const std::vector<Row>& rows, const std::function<void(Recipe&)>& change = [](Recipe&) {}) {
  return run_all_ranks(cut, rows, change).front();
}

// |a - b| / |b| of the worst tensor.
inline double worst_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const at::Tensor expected = b[i].to(at::kDouble);
    worst = std::max(worst, ((a[i].to(at::kDouble) - expected).norm() / expected.norm()).item<double>());
  }
  return worst;
}

inline bool bits_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

inline std::vector<at::Tensor> changes(const Outcome& outcome) {
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < outcome.initial.size(); ++i) result.push_back(outcome.parameters[i] - outcome.initial[i]);
  return result;
}

}  // namespace assay
