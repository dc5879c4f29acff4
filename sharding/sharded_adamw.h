#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "harness/device/device.h"
#include "sharding/flat_unit.h"

namespace assay {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled, on decayed parameters only
};

/// AdamW (Loshchilov and Hutter 2019, as torch.optim.AdamW computes it) on the flat buffers of units, fused. Moments
/// fp32.
class ShardedAdamW {
 public:
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };

  /// Allocates all moments (zeros) now, so that every step is alike. The units must outlive this.
  ShardedAdamW(const std::vector<FlatUnit*>& units, const AdamWOptions& options, Device& device);

  /// One update of all parameters. `grad_divisor` fp32 [1] on the device divides the gradients, which are overwritten.
  void step(double learning_rate, const at::Tensor& grad_divisor);

  /// Updates done so far: the exponent of the bias correction.
  std::int64_t num_steps() const { return num_steps_; }
  void set_num_steps(std::int64_t num_steps);

  const Moments& moments(std::size_t unit) const { return moments_[unit]; }

 private:
  struct Group {
    std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, steps;
    double weight_decay = 0;
  };
  void add_slices(Group& group, const FlatUnit& unit, const Moments& moments, std::int64_t begin,
                  std::int64_t end) const;

  AdamWOptions options_;
  std::vector<Moments> moments_;
  at::Tensor steps_;  ///< fp32 [1], one for all: every parameter is updated every step
  std::vector<Group> groups_;
  std::int64_t num_steps_ = 0;
};

}  // namespace assay
