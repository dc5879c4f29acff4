#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "harness/device/device.h"
#include "sharding/sharded_units.h"

namespace assay {

struct PlannedParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  bool trainable = true;
};
using PlannedUnit = std::vector<PlannedParameter>;

/// Sizes that no world size divides, a unit with trained and frozen parameters, and one with frozen ones alone.
inline std::vector<PlannedUnit> mixed_units() {
  return {{{"embedding", {101, 3}}},
          {{"norm", {13}}, {"frozen_matrix", {3, 5}, false}, {"matrix", {5, 7}}},
          {{"frozen_alone", {17, 2}, false}, {"frozen_bias", {3}, false}},
          {{"one", {1}}, {"last", {33, 2}}}};
}

/// Units without a network on one rank: whoever holds this is the network. Parameters by their number in the plan.
class RankUnits {
 public:
  RankUnits(const std::vector<PlannedUnit>& plan, const ShardingOptions& options, Communicator& communicator,
            Device& device)
      : values_(count(plan)), units(declare(plan), options, communicator, device) {}

  std::size_t size() const { return places_.size(); }
  const at::Tensor& value(std::size_t parameter) const { return values_[parameter]; }
  const PlannedParameter& planned(std::size_t parameter) const { return places_[parameter].planned; }
  std::size_t unit_number(std::size_t parameter) const { return places_[parameter].unit; }
  FlatUnit& unit_of(std::size_t parameter) { return units[places_[parameter].unit]; }

  /// What this rank owns of a trained parameter in an owned tensor of its unit.
  FlatGroup::Part part_of(const at::Tensor& owned, std::size_t parameter) {
    return unit_of(parameter).trained()->part_of(owned, places_[parameter].index_of_trained);
  }
  FlatGroup::Part gradient_part(std::size_t parameter) {
    return part_of(unit_of(parameter).trained()->gradient(), parameter);
  }

  /// Collective.
  void write(const std::function<at::Tensor(std::size_t)>& values) {
    for (std::size_t i = 0; i < size(); ++i) unit_of(i).write_parameter(places_[i].index, values(i));
    units.publish();
  }

  /// Collective: forward and backward; an undefined gradient means that the parameter took no part.
  void micro_step(bool last, const std::function<at::Tensor(std::size_t)>& gradient) {
    const at::NoGradGuard no_grad;
    units.begin_micro_step(last);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      units.before_forward(unit);
      units.after_forward(unit);
    }
    for (std::size_t unit = units.size(); unit-- > 0;) {
      units.before_backward(unit);
      for (std::size_t i = 0; i < size(); ++i) {
        if (places_[i].unit != unit || !places_[i].planned.trainable) continue;
        const at::Tensor own = gradient(i);
        at::Tensor grad = values_[i].grad();
        if (own.defined()) grad.add_(own.to(grad.scalar_type()));
      }
      units.after_backward(unit);
    }
    units.end_micro_step();
  }

  /// Collective: what the network reads.
  std::vector<at::Tensor> read() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> result(size());
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      units.before_forward(unit);
      for (std::size_t i = 0; i < size(); ++i) {
        if (places_[i].unit == unit) result[i] = values_[i].detach().clone();
      }
      units.after_forward(unit);
    }
    return result;
  }

 private:
  struct Place {
    PlannedParameter planned;
    std::size_t unit;
    std::size_t index;
    std::size_t index_of_trained;
  };

  static std::size_t count(const std::vector<PlannedUnit>& plan) {
    std::size_t result = 0;
    for (const auto& unit : plan) result += unit.size();
    return result;
  }

  std::vector<UnitParameters> declare(const std::vector<PlannedUnit>& plan) {
    std::vector<UnitParameters> result;
    for (const auto& unit : plan) {
      result.push_back({"unit" + std::to_string(result.size()), {}});
      std::size_t num_trained = 0;
      for (const auto& planned : unit) {
        auto& parameters = result.back().parameters;
        parameters.push_back(
            {planned.name, planned.shape, planned.shape.size() >= 2, &values_[places_.size()], planned.trainable});
        places_.push_back({planned, result.size() - 1, parameters.size() - 1, num_trained});
        if (planned.trainable) ++num_trained;
      }
    }
    return result;
  }

  std::vector<at::Tensor> values_;
  std::vector<Place> places_;

 public:
  ShardedUnits units;
};

}  // namespace assay
