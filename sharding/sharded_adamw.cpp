#include "sharding/sharded_adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "harness/core/memory_scope.h"

namespace assay {

ShardedAdamW::ShardedAdamW(const std::vector<FlatUnit*>& units, const AdamWOptions& options, Device& device)
    : options_(options) {
  const MemoryScope scope(MemoryCategory::optimizer);
  const auto fp32 = at::device(device.torch_device()).dtype(at::kFloat);
  steps_ = at::zeros({1}, fp32);
  Group decayed;
  decayed.weight_decay = options.weight_decay;
  Group plain;
  for (const FlatUnit* unit : units) {
    const std::int64_t numel = unit->layout().numel;
    moments_.push_back({at::zeros({numel}, fp32), at::zeros({numel}, fp32)});
    add_slices(decayed, *unit, moments_.back(), 0, unit->layout().decayed_end);
    add_slices(plain, *unit, moments_.back(), unit->layout().decayed_end, numel);
  }
  for (auto* group : {&decayed, &plain}) {
    if (!group->parameters.empty()) groups_.push_back(std::move(*group));
  }
}

void ShardedAdamW::add_slices(Group& group, const FlatUnit& unit, const Moments& moments, std::int64_t begin,
                              std::int64_t end) const {
  if (begin == end) return;
  group.parameters.push_back(unit.parameters().narrow(0, begin, end - begin));
  group.gradients.push_back(unit.gradients().narrow(0, begin, end - begin));
  group.exp_avgs.push_back(moments.exp_avg.narrow(0, begin, end - begin));
  group.exp_avg_sqs.push_back(moments.exp_avg_sq.narrow(0, begin, end - begin));
  group.steps.push_back(steps_);
}

void ShardedAdamW::step(double learning_rate, const at::Tensor& grad_divisor) {
  const at::NoGradGuard no_grad;
  set_num_steps(num_steps_ + 1);
  for (auto& group : groups_) {
    at::_fused_adamw_(group.parameters, group.gradients, group.exp_avgs, group.exp_avg_sqs, /*max_exp_avg_sqs=*/{},
                      group.steps, learning_rate, options_.beta1, options_.beta2, group.weight_decay, options_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, grad_divisor, /*found_inf=*/{});
  }
}

void ShardedAdamW::set_num_steps(std::int64_t num_steps) {
  num_steps_ = num_steps;
  steps_.fill_(static_cast<double>(num_steps));
}

}  // namespace assay
