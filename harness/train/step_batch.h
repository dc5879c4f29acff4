#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "harness/device/device.h"
#include "harness/train/row_source.h"

namespace assay {

/// What one rank computes in one micro-step. B rows of L tokens.
struct MicroBatch {
  at::Tensor input_ids;  ///< int64 [B, L]
  at::Tensor targets;    ///< int64 [B * L]: the next token, 0 where it is not trained
  at::Tensor weights;    ///< fp32 [B * L]: 0 where not trained, else 1 / trained tokens of the whole step on all ranks
};

/// All micro-batches of one step, loaded before its first backward so that the divisor is known.
struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  std::int64_t tokens = 0;       ///< rows x length of all ranks
  std::int64_t loss_tokens = 0;  ///< trained ones of all ranks
};

/// Which rows belong to which rank. Row r of micro-step a is sample first + a x world_size x micro_batch_size + r; rank
/// k takes rows k x micro_batch_size onward.
struct BatchShape {
  std::int64_t micro_batch_size = 1;
  std::int64_t num_micro_steps = 1;
  int rank = 0;
  int world_size = 1;

  std::int64_t micro_rows() const { return micro_batch_size * world_size; }
  std::int64_t step_rows() const { return micro_rows() * num_micro_steps; }
};

/// Trained tokens of the samples [first, end).
std::int64_t count_trained_tokens(const RowSource& rows, std::int64_t first, std::int64_t end);

/// Loads this rank's rows of the micro-step that starts at sample `first`. A trained token has weight 1 / loss_tokens
/// (0 if there is none at all: no division by 0); the rows of samples from `end` on have weight 0.
MicroBatch load_micro_batch(const RowSource& rows, std::int64_t first, std::int64_t end, std::int64_t loss_tokens,
                            const BatchShape& shape, Device& device);

/// Loads this rank's part of the step that starts at sample `first`.
StepBatch load_step_batch(const RowSource& rows, std::int64_t first, const BatchShape& shape, Device& device);

}  // namespace assay
