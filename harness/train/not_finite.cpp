#include "harness/train/not_finite.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <vector>

namespace assay {

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
    case Kind::weight:
      return "the weight " + unit.parameters[found.parameter].name;
    case Kind::output:
      return "the output of " + unit.name;
    case Kind::gradient:
      return "the gradient of " + unit.parameters[found.parameter].name;
  }
  return "";
}

std::string NotFiniteFinder::first(Communicator& communicator) const {
  const std::vector<double> own{static_cast<double>(found_.kind), static_cast<double>(found_.unit),
                                static_cast<double>(found_.parameter)};
  const at::Tensor sent = device_.upload(own);
  const at::Tensor all = at::empty({sent.numel() * communicator.world_size()}, sent.options());
  communicator.all_gather(all, sent);
  const auto values = device_.read(all);
  for (std::size_t i = 0; i < values.size(); i += own.size()) {
    const Found found{static_cast<Kind>(values[i]), static_cast<std::size_t>(values[i + 1]),
                      static_cast<std::size_t>(values[i + 2])};
    if (found.kind != Kind::nothing) return "rank " + std::to_string(i / own.size()) + ": " + text_of(found);
  }
  return "";
}

}  // namespace assay
