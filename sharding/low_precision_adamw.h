#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace assay {

/// The numbers of one AdamW update.
struct AdamWUpdate {
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double weight_decay = 0;
  double eps = 0;
  std::int64_t step = 1;   ///< of the bias correction
  std::uint64_t seed = 0;  ///< of the rounding; another for every step and buffer
};

/// One AdamW update (Loshchilov and Hutter 2019) of flat tensors [n] of which some are bf16: computed in fp32 from what
/// they hold, and everything that is kept in bf16 is rounded once, up or down at random with the exact mean
/// (stochastic rounding; to the nearest, updates below 2^-9 of a value would vanish). The random bits depend on the
/// seed and on an element's place in the whole buffer, of which the tensors hold the part from `first_element` on:
/// whole and sharded updates are equal. `grad_divisor` fp32 [1] divides the gradient, which is not changed.
void low_precision_adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
                         const at::Tensor& exp_avg_sq, const AdamWUpdate& update, const at::Tensor& grad_divisor,
                         std::int64_t first_element);

}  // namespace assay
