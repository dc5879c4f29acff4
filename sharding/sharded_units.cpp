#include "sharding/sharded_units.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace assay {
namespace {

// Hooks run inside backward; what is done to flat buffers is not differentiated, and must not count as a change of the
// tensors that autograd saved.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

}  // namespace

ShardedUnits::ShardedUnits(const std::vector<UnitParameters>& units, const ShardingOptions& options,
                           Communicator& communicator, Device& device)
    : options_(options) {
  for (const auto& [name, parameters] : units) {
    units_.push_back(std::make_unique<FlatUnit>(name, parameters, options, communicator, device));
  }
}

void ShardedUnits::start_gather(std::size_t unit) {
  for (const auto& group : units_[unit]->groups()) group->start_gather();
}

void ShardedUnits::finish_gather(std::size_t unit) {
  for (const auto& group : units_[unit]->groups()) group->finish_gather();
}

void ShardedUnits::free(std::size_t unit) {
  for (const auto& group : units_[unit]->groups()) group->free();
}

void ShardedUnits::begin_step() {
  const BelowAutograd below;
  sums_due_.clear();
  gathers_due_.clear();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    free(unit);
    for (const auto& group : units_[unit]->groups()) {
      group->drop_gradients();
      group->zero_gradient();
    }
  }
}

void ShardedUnits::before_forward(std::size_t unit) {
  const BelowAutograd below;
  // A tied head needs the first unit once more: nothing comes after it.
  const bool comes_back = unit < forward_at_;
  const auto in_flight = comes_back ? 1 : static_cast<std::size_t>(options_.units_in_flight);
  forward_at_ = comes_back ? 0 : unit;
  const auto end = std::min(units_.size(), unit + in_flight);
  for (std::size_t next = unit; next < end; ++next) start_gather(next);
  finish_gather(unit);
}

void ShardedUnits::after_forward(std::size_t unit) {
  if (options_.reshard_after_forward) free(unit);
}

void ShardedUnits::begin_gradients(std::size_t unit) {
  const BelowAutograd below;
  if (auto* group = units_[unit]->trained()) group->begin_gradients();
}

void ShardedUnits::before_backward(std::size_t unit) {
  const BelowAutograd below;
  const auto ahead = std::min(unit, static_cast<std::size_t>(options_.units_in_flight) - 1);
  for (std::size_t i = 0; i <= ahead; ++i) start_gather(unit - i);
  finish_gather(unit);
  begin_gradients(unit);
}

void ShardedUnits::finish_oldest_sum() {
  FlatGroup* group = sums_due_.front();
  sums_due_.pop_front();
  group->sum_received();
  gathers_due_.push_back(group);
}

void ShardedUnits::after_backward(std::size_t unit) {
  const BelowAutograd below;
  free(unit);
  FlatGroup* group = units_[unit]->trained();
  if (group == nullptr || !(options_.shard_gradients || last_micro_step_)) return;
  const auto most_pending = static_cast<std::size_t>(options_.units_in_flight) - 1;
  while (!sums_due_.empty() && sums_due_.size() >= most_pending) finish_oldest_sum();
  group->start_reduce();
  sums_due_.push_back(group);
  if (most_pending == 0) finish_oldest_sum();
  // A copy in another dtype is memory that units_in_flight bounds too.
  const bool sends_copies = options_.reduce_dtype != options_.gradient_dtype;
  while (sends_copies && gathers_due_.size() > most_pending) {
    gathers_due_.front()->finish_reduce();
    gathers_due_.pop_front();
  }
}

void ShardedUnits::end_micro_step() {
  const BelowAutograd below;
  while (!sums_due_.empty()) finish_oldest_sum();
  for (FlatGroup* group : gathers_due_) group->finish_reduce();
  gathers_due_.clear();
}

void ShardedUnits::drop_gradients(std::size_t unit) {
  free(unit);
  if (auto* group = units_[unit]->trained()) group->drop_gradients();
}

void ShardedUnits::publish() {
  const BelowAutograd below;
  for (const auto& unit : units_) {
    for (const auto& group : unit->groups()) group->start_publish();
  }
  for (const auto& unit : units_) {
    for (const auto& group : unit->groups()) group->finish_publish();
  }
}

}  // namespace assay
