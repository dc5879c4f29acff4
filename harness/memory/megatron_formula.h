#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace assay {

// Published closed forms for tensor, pipeline and sequence parallelism, which this program plans but does not run.
// Legend, as in Korthikanti et al. 2022 (arXiv 2205.05198): s sequence length, b micro-batch, h hidden size, a heads,
// L layers, f intermediate size, v vocabulary, t ranks of tensor parallelism, p of pipeline parallelism.

enum class MegatronRecompute { none, selective, full };

struct MegatronPlan {
  std::int64_t sequence_length = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t tensor_parallel = 1;
  std::int64_t pipeline_parallel = 1;
  std::int64_t virtual_stages = 0;     ///< chunks of layers on a rank of an interleaved pipeline; 0: not interleaved
  std::int64_t num_micro_batches = 0;  ///< of a step; 0: enough to fill the pipeline
  std::int64_t data_parallel = 1;
  bool sequence_parallel = false;
  bool distributed_optimizer = false;  ///< master weights and moments spread over data_parallel
};

/// Table 2 of the paper: bytes of activations of one layer, fp16 or bf16, with dropout, GELU and f = 4 h, and attention
/// that keeps its s x s matrices:
///   t = 1                      s b h (34 + 5 a s / h)
///   tensor                     s b h (10 + 24 / t + 5 a s / (h t))
///   tensor and sequence        s b h / t (34 + 5 a s / h)
///   the same, selective        34 s b h / t      (recomputes attention's matrices; also flash attention)
///   full recomputation         2 s b h
/// Without sequence parallelism selective is s b h (10 + 24 / t).
double paper_layer_bytes(const ModelConfig& config, const MegatronPlan& plan, MegatronRecompute recompute);

/// Factor on the activations of an interleaved pipeline, 1 + (p - 1) / (p m) with m = virtual_stages; else 1 (section
/// 4.2.3).
double interleaving_factor(const MegatronPlan& plan);

/// The vocabulary as Megatron-LM pads it, to a multiple of 128 t.
std::int64_t padded_vocab_size(const ModelConfig& config, const MegatronPlan& plan);

/// Weights, gradients and optimizer of the fullest rank (the first stage, with the embedding): 18 bytes a parameter, or
/// 6 + 12 / data_parallel with the distributed optimizer. compute_weight_and_optimizer_memory() in Megatron-LM's
/// megatron/training/theoretical_memory_usage.py.
double megatron_state_bytes(const ModelConfig& config, const MegatronPlan& plan);

/// Activations of the first stage with flash attention or selective recomputation; in the same file
/// compute_activation_memory() with sequence parallelism, (18 + 4 f / h) s b h / t a layer, and without it
/// compute_activation_memory_without_sp(), (10 + 24 / t) s b h a layer and 5 % for temporaries. Both add embedding and,
/// with p = 1, logits.
double megatron_activation_bytes(const ModelConfig& config, const MegatronPlan& plan);

}  // namespace assay
