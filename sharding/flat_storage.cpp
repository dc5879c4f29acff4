#include "sharding/flat_storage.h"

#include <ATen/ATen.h>

namespace assay {

at::Tensor flat_without_memory(std::int64_t numel, c10::ScalarType dtype, c10::Device device) {
  at::Tensor tensor = at::empty({0}, at::device(device).dtype(dtype));
  // The storage keeps its nominal size while it has no memory, so that no operator tries to resize it.
  tensor.storage().set_nbytes(static_cast<std::size_t>(numel) * tensor.element_size());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return tensor;
}

void take_memory(const at::Tensor& flat) {
  auto* storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(storage->nbytes()));
}

void give_memory_back(const at::Tensor& flat) {
  flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, flat.device()));
}

}  // namespace assay
