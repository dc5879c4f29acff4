#pragma once

#include <cstdint>

#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

/// The guides' closed formula, term by term: bytes on the fullest rank.
struct FormulaTerms {
  std::int64_t weights = 0;  ///< parameters in the dtype they are kept in
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< moments, and fp32 masters beside weights of a lower precision
  std::int64_t activations =
      0;  ///< what forward keeps for backward, the micro-batches, and the chunk of logits in work
  std::int64_t communication = 0;  ///< gathered units, gradients of units in reduction, and what they are received in
  std::int64_t overhead = 0;       ///< of the device's runtime

  std::int64_t total() const;
};

/// Screening arithmetic for every strategy, precision and kind of activation checkpointing. It knows no temporaries, no
/// rounding and no fragmentation, and takes every term at its largest; the dry run does better.
///
/// States, bytes a parameter on one of N ranks:
///                  none, ddp      zero1            zero2                fsdp
///   fp32           4 + 4 + 8      4 + 4 + 8/N      4 + 4/N + 8/N        (4 + 4 + 8)/N
///   bf16, fp16     2 + 4 + 12     2 + 4 + 12/N     2 + 4/N + 12/N       (4 + 4 + 8)/N
///   pure_bf16      2 + 2 + 4      2 + 2 + 4/N      2 + 2/N + 4/N        (2 + 2 + 4)/N    (moments in bf16)
///
/// A block keeps for backward, a token, in elements of the compute dtype: 4 E (its input, both normed inputs, the
/// middle sum), 2 H D (query, attention output), 2 K D (key, value), 3 F (gate, up, their product), and in fp32 H + 2
/// (softmax sums, norm roots). Checkpointed in full it keeps E; selectively the outputs of its products, 2 E + 2 H D +
/// 2 K D + 2 F; then one block at a time holds the rest as well.
FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t world_size);

}  // namespace assay
