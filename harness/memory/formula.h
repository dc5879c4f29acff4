#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "harness/memory/overhead.h"
#include "harness/recipe/recipe.h"
#include "model/model_config.h"

namespace assay {

/// The moments of a step at which memory can be fullest: forward has come to the loss; a unit is differentiated; the
/// optimizer updates.
enum class FormulaMoment { forward, backward, update };
inline constexpr std::array<std::string_view, 3> kFormulaMomentNames{"forward", "backward", "update"};
inline std::string_view name_of(FormulaMoment moment) { return kFormulaMomentNames[static_cast<std::size_t>(moment)]; }

/// The guides' closed formula, term by term: bytes on the fullest rank, at the fullest moment of a step. Not the sum of
/// each term's own largest value.
struct FormulaTerms {
  std::int64_t weights = 0;  ///< parameters in the dtype they are kept in, adapters included
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< moments, and fp32 masters beside weights of a lower precision
  std::int64_t activations =
      0;  ///< what forward keeps for backward, the micro-batches, what is computed at that moment
  std::int64_t communication = 0;  ///< gathered units, gradients of units in reduction, and what they are received in
  std::int64_t overhead = 0;       ///< of the device's runtime; see overhead.h
  FormulaMoment moment = FormulaMoment::forward;

  std::int64_t total() const;
};

/// Screening arithmetic for every mode, strategy, precision and kind of activation checkpointing, on the recipe's
/// device. It knows no rounding and no fragmentation, and of temporaries the largest only; the dry run does better.
///
/// States, bytes a trained parameter on one of N ranks (Rajbhandari et al. 2020, arXiv 1910.02054, figure 1, with fp32
/// gradients as in Megatron-LM's theoretical_memory_usage.py: 18 in place of 16):
///                  none, ddp      zero1            zero2                fsdp
///   fp32           4 + 4 + 8      4 + 4 + 8/N      4 + 4/N + 8/N        (4 + 4 + 8)/N
///   bf16, fp16     2 + 4 + 12     2 + 4 + 12/N     2 + 4/N + 12/N       (4 + 4 + 8)/N
///   pure_bf16      2 + 2 + 4      2 + 2 + 4/N      2 + 2/N + 4/N        (2 + 2 + 4)/N    (moments in bf16)
/// A frozen parameter (lora, qlora, inference) has its weight only, in the compute dtype; a block's matrix under
/// quantization type nf4 has nf4_bytes(); both /N under fsdp.
///
/// Activations: activation_bytes(). Communication, with u units in flight, is at
///   forward   fsdp: the head gathered, or all units without reshard_after_forward; zero2, fsdp: the head's gradient.
///             A tied head gathers the embedding.
///   backward  of a block: fsdp: it and u - 1 units before it gathered, or all of them; zero2, fsdp: its gradient; and
///             gradients of u - 1 units after it on their way (u = 1: its own, once it is differentiated): each the
///             gradient if it is sharded, on a CPU what is received, and what is sent if that is another dtype (ddp: of
///             u - 1 more units). A tied embedding keeps its gradient from the loss on.
///             of the embedding: it is gathered, its gradient, u - 1 blocks' on their way; then its own.
///   update    nothing
FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t world_size,
                           const Overhead& overhead);

/// The same with the overhead by its table, for a GPU of compute capability 9.0.
FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t world_size);

}  // namespace assay
