#include "harness/train/not_finite.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <vector>

namespace assay {

// A weight that is gathered is everybody's; the rank that owns it has it first.
NotFiniteFinder::NotFiniteFinder(Transformer& model, ShardedUnits& units, Device& device)
    : model_(model), units_(units), device_(device) {
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (std::size_t i = 0; i < model.units()[unit].parameters.size(); ++i) {
      look_at(units[unit].master_part(i).values, {Kind::own_weight, unit, i});
    }
  }
}

void NotFiniteFinder::look_at(const at::Tensor& tensor, const Found& where) {
  if (found_.kind != Kind::nothing) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor count = at::isfinite(tensor).logical_not().sum().to(at::kDouble).view({1});
  if (device_.read(count).front() > 0) found_ = where;
}

void NotFiniteFinder::before_forward(std::size_t unit) {
  units_.before_forward(unit);
  const auto& parameters = model_.units()[unit].parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) look_at(parameters[i].value, {Kind::weight, unit, i});
}

void NotFiniteFinder::after_forward(std::size_t unit, const at::Tensor& output) {
  look_at(output, {Kind::output, unit, 0});
  units_.after_forward(unit);
}

void NotFiniteFinder::after_backward(std::size_t unit) {
  const auto& parameters = model_.units()[unit].parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].value.grad().defined()) look_at(parameters[i].value.grad(), {Kind::gradient, unit, i});
  }
  units_.drop_gradients(unit);
}

std::string NotFiniteFinder::text_of(const Found& found) const {
  const auto& unit = model_.units()[found.unit];
  switch (found.kind) {
    case Kind::nothing:
      return "";
    case Kind::own_weight:
    case Kind::weight:
      return "the weight " + unit.parameters[found.parameter].name;
    case Kind::output:
      return "the output of " + unit.name;
    case Kind::gradient:
      return "the gradient of " + unit.parameters[found.parameter].name;
  }
  return "";
}

std::optional<NotFiniteFinder::First> NotFiniteFinder::first(Communicator& communicator) const {
  const std::vector<double> own{static_cast<double>(found_.kind), static_cast<double>(found_.unit),
                                static_cast<double>(found_.parameter)};
  const at::Tensor sent = device_.upload(own);
  const at::Tensor all = at::empty({sent.numel() * communicator.world_size()}, sent.options());
  communicator.all_gather(all, sent);
  const auto values = device_.read(all);
  Found first;
  std::size_t first_rank = 0;
  for (std::size_t i = 0; i < values.size(); i += own.size()) {
    const auto kind = static_cast<Kind>(values[i]);
    if (kind >= first.kind) continue;
    first = {kind, static_cast<std::size_t>(values[i + 1]), static_cast<std::size_t>(values[i + 2])};
    first_rank = i / own.size();
  }
  if (first.kind == Kind::nothing) return std::nullopt;
  return First{static_cast<int>(first_rank), text_of(first)};
}

}  // namespace assay
