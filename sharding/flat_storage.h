#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace assay {

/// A flat tensor [numel] that has a size but no memory. Views may be made of it; reading values is an error until
/// take_memory().
at::Tensor flat_without_memory(std::int64_t numel, c10::ScalarType dtype, c10::Device device);

/// Gives such a tensor memory of its device's allocator, without values; its views have it too. Throws
/// c10::OutOfMemoryError and changes nothing.
void take_memory(const at::Tensor& flat);

/// Takes the memory away again, whatever still refers to the tensor.
void give_memory_back(const at::Tensor& flat);

}  // namespace assay
