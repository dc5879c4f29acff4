#include "harness/train/tensor_bytes.h"

#include <ATen/ATen.h>

#include <array>
#include <utility>

#include "harness/core/error.h"

namespace assay {
namespace {

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 5> kDtypes{
    {{"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong}, {"U8", at::kByte}}};

}  // namespace

at::Tensor tensor_over(const TensorInfo& info, std::string_view bytes) {
  for (const auto& [name, dtype] : kDtypes) {
    if (name != info.dtype) continue;
    return at::from_blob(const_cast<char*>(bytes.data()), info.shape, at::TensorOptions().dtype(dtype));
  }
  throw Error(ErrorKind::data,
              info.name + " has dtype " + info.dtype + ", which is not supported here; F32, F16, BF16, I64 and U8 are");
}

at::Tensor tensor_over(const TensorView& view) { return tensor_over(view.info, view.bytes); }

std::string safetensors_dtype(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) return std::string(name);
  }
  throw Error(ErrorKind::internal, std::string("no safetensors name for dtype ") + at::toString(dtype));
}

std::vector<TensorBytes> bytes_of(const std::vector<StateTensor>& tensors) {
  std::vector<TensorBytes> bytes;
  for (const auto& [name, tensor] : tensors) {
    bytes.push_back({name, safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec(), tensor.const_data_ptr(),
                     tensor.nbytes()});
  }
  return bytes;
}

std::vector<TensorDestination> destinations_of(const std::vector<StateTensor>& tensors) {
  std::vector<TensorDestination> destinations;
  for (const auto& [name, tensor] : tensors) {
    destinations.push_back({name, safetensors_dtype(tensor.scalar_type()), tensor.sizes().vec(),
                            tensor.mutable_data_ptr(), tensor.nbytes()});
  }
  return destinations;
}

}  // namespace assay
