#include "harness/memory/megatron_formula.h"

#include <algorithm>

namespace assay {
namespace {

double real(std::int64_t number) { return static_cast<double>(number); }

/// s b: what every term is a multiple of.
double tokens(const MegatronPlan& plan) { return real(plan.sequence_length * plan.micro_batch_size); }

/// Share of the pipeline's micro-batches that are in flight where a step has fewer than it has stages.
double filling(const MegatronPlan& plan) {
  if (plan.virtual_stages > 0 || plan.pipeline_parallel == 1 || plan.num_micro_batches == 0) return 1;
  return std::min(1.0, real(plan.num_micro_batches) / real(plan.pipeline_parallel));
}

}  // namespace

double paper_layer_bytes(const ModelConfig& config, const MegatronPlan& plan, MegatronRecompute recompute) {
  const double t = real(plan.tensor_parallel);
  const double sbh = tokens(plan) * real(config.hidden_size);
  if (recompute == MegatronRecompute::full) return 2 * sbh;
  const double scores = recompute == MegatronRecompute::selective
                            ? 0
                            : 5 * real(config.num_attention_heads * plan.sequence_length) / real(config.hidden_size);
  const double whole = plan.sequence_parallel ? 10 / t : 10;  // norms and dropouts of the residual path
  return sbh * (whole + (24 + scores) / t);
}

double interleaving_factor(const MegatronPlan& plan) {
  if (plan.virtual_stages == 0) return 1;
  return 1 + real(plan.pipeline_parallel - 1) / real(plan.pipeline_parallel * plan.virtual_stages);
}

std::int64_t padded_vocab_size(const ModelConfig& config, const MegatronPlan& plan) {
  const std::int64_t multiple = 128 * plan.tensor_parallel;
  return (config.vocab_size + multiple - 1) / multiple * multiple;
}

double megatron_state_bytes(const ModelConfig& config, const MegatronPlan& plan) {
  double layer = 0;
  for (const auto& matrix : config.block_matrices()) layer += real(matrix.in * matrix.out);
  const double norm = (config.other_biases ? 2 : 1) * real(config.hidden_size);
  const double blocks = real(config.num_hidden_layers) * (layer + 2 * norm) + norm;
  const double embedding = real(padded_vocab_size(config, plan) * config.hidden_size);
  const bool has_head = !config.tie_word_embeddings && plan.pipeline_parallel == 1;
  const double parameters =
      (blocks / real(plan.pipeline_parallel) + (has_head ? 2 : 1) * embedding) / real(plan.tensor_parallel);
  return parameters * (plan.distributed_optimizer ? 6 + 12 / real(plan.data_parallel) : 18);
}

double megatron_activation_bytes(const ModelConfig& config, const MegatronPlan& plan) {
  const double t = real(plan.tensor_parallel);
  const double p = real(plan.pipeline_parallel);
  const double h = real(config.hidden_size);
  const double sbh = tokens(plan) * h;
  const double layer = sbh * (plan.sequence_parallel ? 18 + 4 * real(config.intermediate_size) / h : 10 + 24 / t);
  const double embedding = 8 * tokens(plan) * p + sbh * p;
  double bytes = (layer * real(config.num_hidden_layers) + embedding) * interleaving_factor(plan) * filling(plan);
  const double vocabulary = real(padded_vocab_size(config, plan));
  if (plan.sequence_parallel) {
    if (plan.pipeline_parallel == 1) bytes += 4 * sbh * (1 + vocabulary / h);
    return bytes / t;
  }
  constexpr double kTemporaries = 1.05;
  if (plan.pipeline_parallel == 1) bytes += 2 * (tokens(plan) * vocabulary / t + sbh);
  return bytes * kTemporaries;
}

}  // namespace assay
