#pragma once

#include <c10/core/ScalarType.h>

namespace assay {

/// How the parameters of a job are spread over its ranks and in which dtypes. The five strategies are settings of it:
///
///              optimizer  gradients  parameters      sharded
///   none, ddp      -          -          -
///   zero1          x          -          -
///   zero2          x          x          -
///   fsdp           x          x          x
///
/// Gradients that are whole on every rank are summed over the ranks once a step, after its last micro-step; sharded
/// ones after every micro-step.
struct ShardingOptions {
  bool shard_optimizer = false;
  bool shard_gradients = false;       ///< with shard_optimizer only
  bool shard_parameters = false;      ///< with shard_gradients only
  bool reshard_after_forward = true;  ///< sharded parameters are freed after forward and gathered again for backward
  int units_in_flight = 2;            ///< units gathered at once; as many may be in reduction

  c10::ScalarType compute_dtype = c10::ScalarType::Float;   ///< of the weights as the network reads them
  c10::ScalarType master_dtype = c10::ScalarType::Float;    ///< of the weights as the optimizer updates them
  c10::ScalarType gradient_dtype = c10::ScalarType::Float;  ///< in which gradients accumulate
  c10::ScalarType reduce_dtype =
      c10::ScalarType::Float;  ///< in which they travel; on a CPU summed in fp32 and rounded to it
};

}  // namespace assay
