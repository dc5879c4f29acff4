#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>

namespace assay {

/// XXH3-128 of bytes in host memory.
class TensorHash {
 public:
  TensorHash();
  void add(const void* data, std::size_t size);
  void add(const at::Tensor& tensor) { add(tensor.const_data_ptr(), tensor.nbytes()); }  ///< contiguous, on the CPU
  /// In hexadecimal.
  std::string text() const;

 private:
  std::shared_ptr<void> state_;  ///< the library's
};

}  // namespace assay
