#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "harness/device/device.h"
#include "sharding/sharded_units.h"

namespace assay {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled, on decayed parameters only
  c10::ScalarType moment_dtype = c10::ScalarType::Float;
  std::uint64_t rounding_seed = 0;  ///< of stochastic rounding, where something is kept in bf16
};

/// AdamW (Loshchilov and Hutter 2019, as torch.optim.AdamW computes it) on what this rank owns of the trained groups:
/// fused where all is fp32, else by low_precision_adamw.
class ShardedAdamW {
 public:
  /// [owned_numel] each; undefined for a unit without trained parameters.
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };

  /// Allocates all moments (zeros) now, so that every step is alike. The units must outlive this.
  ShardedAdamW(const ShardedUnits& units, const AdamWOptions& options, Device& device);

  /// One update of all masters; ShardedUnits::publish() must follow. `grad_divisor` fp32 [1] on the device divides the
  /// gradients, which are overwritten.
  void step(double learning_rate, const at::Tensor& grad_divisor);

  /// Updates done so far: the exponent of the bias correction.
  std::int64_t num_steps() const { return num_steps_; }
  void set_num_steps(std::int64_t num_steps);

  const Moments& moments(std::size_t unit) const { return moments_[unit]; }

 private:
  struct Slices {
    std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, steps;
    std::vector<std::int64_t> first_elements;  ///< place of each in its flat buffer
    std::vector<std::size_t> units;
    double weight_decay = 0;
  };
  void add_slice(Slices& slices, std::size_t unit, const FlatGroup& group, std::int64_t begin, std::int64_t end);
  void update_in_low_precision(const Slices& slices, double learning_rate, const at::Tensor& grad_divisor) const;

  AdamWOptions options_;
  bool all_fp32_;
  std::vector<Moments> moments_;
  at::Tensor steps_;  ///< fp32 [1], one for all: every parameter is updated every step
  std::vector<Slices> slices_;
  std::int64_t num_steps_ = 0;
};

}  // namespace assay
