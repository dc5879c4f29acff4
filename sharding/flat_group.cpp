#include "sharding/flat_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "sharding/flat_storage.h"

namespace assay {
namespace {

FlatLayout layout_of(const std::vector<FlatParameter>& parameters, int world_size) {
  std::vector<FlatParameterSize> sizes;
  for (const auto& parameter : parameters)
    sizes.push_back({c10::multiply_integers(parameter.shape), parameter.decayed});
  return make_flat_layout(sizes, world_size);
}

at::Tensor zeros(std::int64_t numel, c10::ScalarType dtype, MemoryCategory category, Device& device) {
  const MemoryScope scope(category);
  return at::zeros({numel}, at::device(device.torch_device()).dtype(dtype));
}

}  // namespace

FlatGroup::FlatGroup(const std::vector<FlatParameter>& parameters, bool trainable, const ShardingOptions& options,
                     Communicator& communicator, Device& device)
    : layout_(layout_of(parameters, communicator.world_size())),
      trainable_(trainable),
      options_(options),
      communicator_(communicator) {
  if (!trainable) {
    options_.master_dtype = options_.compute_dtype;
    options_.shard_optimizer = options_.shard_gradients = options_.shard_parameters;
  }
  const bool whole = !options_.shard_optimizer;
  owned_begin_ = whole ? 0 : communicator.rank() * layout_.shard_numel;
  owned_numel_ = whole ? layout_.numel : layout_.shard_numel;

  const auto dtype = options_.compute_dtype;
  weights_ = options_.shard_parameters ? flat_without_memory(layout_.numel, dtype, device.torch_device())
                                       : zeros(layout_.numel, dtype, MemoryCategory::parameters, device);
  if (options_.shard_parameters) {
    master_ = zeros(owned_numel_, options_.master_dtype, MemoryCategory::parameters, device);
  } else if (options_.master_dtype == dtype) {
    master_ = weights_.narrow(0, owned_begin_, owned_numel_);
  } else {
    master_ = zeros(owned_numel_, options_.master_dtype, MemoryCategory::optimizer, device);
  }
  if (trainable) {
    const auto gradient_dtype = options_.gradient_dtype;
    if (options_.shard_gradients) {
      gradients_ = flat_without_memory(layout_.numel, gradient_dtype, device.torch_device());
      gradient_ = zeros(owned_numel_, gradient_dtype, MemoryCategory::gradients, device);
    } else {
      gradients_ = zeros(layout_.numel, gradient_dtype, MemoryCategory::gradients, device);
      gradient_ = gradients_.narrow(0, owned_begin_, owned_numel_);
    }
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& shape = parameters[i].shape;
    numels_.push_back(c10::multiply_integers(shape));
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, layout_.offsets[i], numels_.back()).view(shape);
    };
    at::Tensor value = view(weights_).detach().requires_grad_(trainable);
    if (trainable) {
      value.set_grad_dtype(options_.gradient_dtype);
      value.mutable_grad() = view(gradients_);
    }
    *parameters[i].value = std::move(value);
  }
}

at::Tensor FlatGroup::own_part(const at::Tensor& flat) const {
  return flat.narrow(0, communicator_.rank() * layout_.shard_numel, layout_.shard_numel);
}

at::Tensor FlatGroup::shard_of(const at::Tensor& owned) const {
  return owned_numel_ == layout_.numel ? own_part(owned) : owned;
}

FlatGroup::Part FlatGroup::part_of(const at::Tensor& owned, std::size_t index) const {
  const std::int64_t offset = layout_.offsets[index];
  const std::int64_t begin = std::clamp(owned_begin_, offset, offset + numels_[index]);
  const std::int64_t end = std::clamp(owned_begin_ + owned_numel_, begin, offset + numels_[index]);
  return {begin - offset, begin == end ? owned.narrow(0, 0, 0) : owned.narrow(0, begin - owned_begin_, end - begin)};
}

void FlatGroup::write_parameter(std::size_t index, const at::Tensor& values) const {
  ASSAY_CHECK(values.numel() == numels_[index]);
  const Part part = part_of(master_, index);
  part.values.copy_(values.reshape({-1}).narrow(0, part.first, part.values.numel()));
}

void FlatGroup::start_publish() {
  if (options_.shard_parameters) return;  // done when they are gathered
  if (options_.master_dtype != options_.compute_dtype) weights_.narrow(0, owned_begin_, owned_numel_).copy_(master_);
  if (owned_numel_ == layout_.numel) return;
  gathering_ = communicator_.start_all_gather(weights_, own_part(weights_));
}

void FlatGroup::gather_owned(const at::Tensor& owned) const {
  if (owned_numel_ == layout_.numel) communicator_.all_gather(owned, own_part(owned));
}

void FlatGroup::start_gather() {
  if (!options_.shard_parameters || gathered_) return;
  const MemoryScope scope(MemoryCategory::communication);
  take_memory(weights_);
  gathered_ = true;
  const at::Tensor own = own_part(weights_);
  own.copy_(master_);
  gathering_ = communicator_.start_all_gather(weights_, own);
}

void FlatGroup::free() {
  if (!gathered_) return;
  gathering_ = {};
  give_memory_back(weights_);
  gathered_ = false;
}

void FlatGroup::begin_gradients() {
  if (!trainable_ || !options_.shard_gradients || gradients_begun_) return;
  const MemoryScope scope(MemoryCategory::communication);
  take_memory(gradients_);
  gradients_begun_ = true;
  gradients_.zero_();
}

void FlatGroup::zero_gradient() {
  if (trainable_) (options_.shard_gradients ? gradient_ : gradients_).zero_();
}

void FlatGroup::start_reduce() {
  if (!trainable_) return;
  if (communicator_.world_size() == 1) return;
  const MemoryScope scope(MemoryCategory::communication);
  sent_ = gradients_.scalar_type() == options_.reduce_dtype ? gradients_ : gradients_.to(options_.reduce_dtype);
  buffer_ = communicator_.reduction_buffer(sent_);
  reducing_ = communicator_.start_reduce_scatter(sent_, buffer_);
}

void FlatGroup::sum_received() {
  if (!trainable_) return;
  if (communicator_.world_size() > 1) {
    const MemoryScope scope(MemoryCategory::communication);
    communicator_.finish_reduce_scatter(reducing_, sent_, buffer_);
    buffer_.reset();
    const at::Tensor own = own_part(sent_);
    if (!options_.shard_optimizer) {
      reducing_ = communicator_.start_all_gather(sent_, own);
    } else {
      if (!sent_.is_same(gradients_)) own_part(gradients_).copy_(own);
      sent_.reset();
    }
  }
  if (options_.shard_gradients) {
    gradient_.add_(own_part(gradients_));
    drop_gradients();
  }
}

void FlatGroup::finish_reduce() {
  if (!sent_.defined()) return;
  reducing_.wait();
  if (!sent_.is_same(gradients_)) gradients_.copy_(sent_);
  sent_.reset();
}

void FlatGroup::drop_gradients() {
  reducing_ = {};
  sent_.reset();
  buffer_.reset();
  if (!gradients_begun_) return;
  give_memory_back(gradients_);
  gradients_begun_ = false;
}

}  // namespace assay
