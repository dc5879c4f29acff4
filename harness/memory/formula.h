#pragma once

#include <cstdint>

#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

/// The guides' closed formula, term by term: bytes on the fullest rank.
struct FormulaTerms {
  std::int64_t weights = 0;  ///< parameters in the dtype they are kept in
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< moments
  std::int64_t activations =
      0;  ///< what forward keeps for backward, the micro-batches, and the chunk of logits in work
  std::int64_t communication = 0;  ///< buffers of the gradient reduction, when the activations are gone
  std::int64_t overhead = 0;       ///< of the device's runtime

  /// Activations and communication buffers are never alive together: states + the larger of both + overhead.
  std::int64_t total() const;
};

/// Screening arithmetic for the layouts of design section 5 (fp32, strategies none and ddp: 4 + 4 + 8 bytes a
/// parameter). It knows no temporaries, no rounding and no fragmentation; the dry run does.
///
/// A block keeps for backward, a token, in elements of 4 bytes: 4 E (its input, both normed inputs, the middle sum), 2
/// H D (query, attention output), 2 K D (key, value), 3 F (gate, up, their product), H + 2 (softmax sums, norm roots).
FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config);

}  // namespace assay
