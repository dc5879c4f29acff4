#include "sharding/flat_unit.h"

#include <ATen/ATen.h>

#include <utility>

#include "harness/core/memory_scope.h"

namespace assay {
namespace {

FlatLayout layout_of(const std::vector<FlatParameter>& parameters, int world_size) {
  std::vector<FlatParameterSize> sizes;
  for (const auto& parameter : parameters)
    sizes.push_back({c10::multiply_integers(parameter.shape), parameter.decayed});
  return make_flat_layout(sizes, world_size);
}

at::Tensor zeros(std::int64_t numel, MemoryCategory category, Device& device) {
  const MemoryScope scope(category);
  return at::zeros({numel}, at::device(device.torch_device()).dtype(at::kFloat));
}

}  // namespace

FlatUnit::FlatUnit(std::string name, const std::vector<FlatParameter>& parameters, int rank, int world_size,
                   Device& device)
    : name_(std::move(name)),
      rank_(rank),
      layout_(layout_of(parameters, world_size)),
      parameters_(zeros(layout_.numel, MemoryCategory::parameters, device)),
      gradients_(zeros(layout_.numel, MemoryCategory::gradients, device)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& shape = parameters[i].shape;
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, layout_.offsets[i], c10::multiply_integers(shape)).view(shape);
    };
    at::Tensor value = view(parameters_).detach().requires_grad_();
    value.mutable_grad() = view(gradients_);
    *parameters[i].value = std::move(value);
  }
}

at::Tensor FlatUnit::shard_of(const at::Tensor& flat) const {
  return flat.narrow(0, rank_ * layout_.shard_numel, layout_.shard_numel);
}

void FlatUnit::zero_gradients() { gradients_.zero_(); }

}  // namespace assay
