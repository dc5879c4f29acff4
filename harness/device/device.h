#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace assay {

/// Where a trainer runs. The trainer, the model and the sharding never ask which one it is. One object a rank; not
/// thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  /// Where tensors are created.
  virtual c10::Device torch_device() const = 0;

  /// A new fp64 tensor [n] on the device with these values.
  virtual at::Tensor upload(const std::vector<double>& values) = 0;

  /// A new fp32 tensor of this shape on the device with these values.
  virtual at::Tensor upload(const std::vector<float>& values, at::IntArrayRef shape) = 0;

  /// The same with values that are computed only where there is memory for them: not in a dry run.
  virtual at::Tensor upload(const std::function<std::vector<float>()>& values, at::IntArrayRef shape) = 0;

  /// A new int64 tensor of this shape on the device with these values.
  virtual at::Tensor upload(const std::vector<std::int64_t>& values, at::IntArrayRef shape) = 0;

  /// The values of an fp64 tensor. The one place where values leave the device; waits for it. A dry run gives zeros.
  virtual std::vector<double> read(const at::Tensor& values) = 0;

  /// Waits until all work given to the device is done.
  virtual void synchronize() {}
};

/// The CPU with `num_threads` threads for each rank. Sets the thread count of LibTorch in this process.
std::unique_ptr<Device> make_cpu_device(int num_threads);

/// What a dry run stands for.
struct MetaTarget {
  bool cuda = false;            ///< a CUDA card, else the CPU
  int num_threads = 1;          ///< of a CPU rank; its kernels take scratch for each
  int compute_capability = 90;  ///< of the card: 80 for 8.0
};

/// A dry run: tensors without memory or values. The same operators allocate the same blocks in the same order as on the
/// target, scratch of kernels included. Belongs to the calling thread, whose newest meta device counts.
std::unique_ptr<Device> make_meta_device(const MetaTarget& target);

}  // namespace assay
