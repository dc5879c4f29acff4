#include "sharding/sharded_adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "harness/core/memory_scope.h"
#include "sharding/low_precision_adamw.h"

namespace assay {

ShardedAdamW::ShardedAdamW(const ShardedUnits& units, const AdamWOptions& options, Device& device)
    : options_(options),
      all_fp32_(options.moment_dtype == at::kFloat && units.options().master_dtype == at::kFloat),
      moments_(units.size()) {
  const MemoryScope scope(MemoryCategory::optimizer);
  const auto on_device = at::device(device.torch_device());
  steps_ = at::zeros({1}, on_device.dtype(at::kFloat));
  Slices decayed;
  decayed.weight_decay = options.weight_decay;
  Slices plain;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const FlatGroup* group = units[unit].trained();
    if (group == nullptr) continue;
    const auto moment = [&] { return at::zeros({group->owned_numel()}, on_device.dtype(options.moment_dtype)); };
    moments_[unit] = {moment(), moment()};
    add_slice(decayed, unit, *group, 0, group->layout().decayed_end);
    add_slice(plain, unit, *group, group->layout().decayed_end, group->layout().numel);
  }
  for (auto* slices : {&decayed, &plain}) {
    if (!slices->parameters.empty()) slices_.push_back(std::move(*slices));
  }
}

// [begin, end) of the flat buffer, as far as this rank owns it.
void ShardedAdamW::add_slice(Slices& slices, std::size_t unit, const FlatGroup& group, std::int64_t begin,
                             std::int64_t end) {
  begin = std::max(begin, group.owned_begin());
  end = std::min(end, group.owned_begin() + group.owned_numel());
  if (begin >= end) return;
  const auto slice = [&](const at::Tensor& owned) { return owned.narrow(0, begin - group.owned_begin(), end - begin); };
  slices.parameters.push_back(slice(group.master()));
  slices.gradients.push_back(slice(group.gradient()));
  slices.exp_avgs.push_back(slice(moments_[unit].exp_avg));
  slices.exp_avg_sqs.push_back(slice(moments_[unit].exp_avg_sq));
  slices.steps.push_back(steps_);
  slices.first_elements.push_back(begin);
  slices.units.push_back(unit);
}

void ShardedAdamW::step(double learning_rate, const at::Tensor& grad_divisor) {
  const at::NoGradGuard no_grad;
  set_num_steps(num_steps_ + 1);
  for (auto& slices : slices_) {
    if (!all_fp32_) {
      update_in_low_precision(slices, learning_rate, grad_divisor);
      continue;
    }
    at::_fused_adamw_(slices.parameters, slices.gradients, slices.exp_avgs, slices.exp_avg_sqs,
                      /*max_exp_avg_sqs=*/{}, slices.steps, learning_rate, options_.beta1, options_.beta2,
                      slices.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, grad_divisor,
                      /*found_inf=*/{});
  }
}

void ShardedAdamW::update_in_low_precision(const Slices& slices, double learning_rate,
                                           const at::Tensor& grad_divisor) const {
  AdamWUpdate update{learning_rate, options_.beta1, options_.beta2, slices.weight_decay, options_.eps, num_steps_, 0};
  for (std::size_t i = 0; i < slices.parameters.size(); ++i) {
    // A stream for each step and unit; 2^24 units are more than any network has.
    update.seed = options_.rounding_seed ^ ((static_cast<std::uint64_t>(num_steps_) << 24U) + slices.units[i]);
    low_precision_adamw(slices.parameters[i], slices.gradients[i], slices.exp_avgs[i], slices.exp_avg_sqs[i], update,
                        grad_divisor, slices.first_elements[i]);
  }
}

void ShardedAdamW::set_num_steps(std::int64_t num_steps) {
  num_steps_ = num_steps;
  steps_.fill_(static_cast<double>(num_steps));
}

}  // namespace assay
