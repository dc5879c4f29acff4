#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "harness/device/device.h"

namespace assay {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int num_threads) { at::set_num_threads(num_threads); }

  c10::Device torch_device() const override { return c10::Device(c10::kCPU); }

  at::Tensor upload(const std::vector<double>& values) override {
    return copy(values, {static_cast<std::int64_t>(values.size())}, at::kDouble);
  }
  at::Tensor upload(const std::vector<float>& values, at::IntArrayRef shape) override {
    return copy(values, shape, at::kFloat);
  }
  at::Tensor upload(const std::function<std::vector<float>()>& values, at::IntArrayRef shape) override {
    return copy(values(), shape, at::kFloat);
  }
  at::Tensor upload(const std::vector<std::int64_t>& values, at::IntArrayRef shape) override {
    return copy(values, shape, at::kLong);
  }

  std::vector<double> read(const at::Tensor& values) override {
    const double* data = values.const_data_ptr<double>();
    return {data, data + values.numel()};
  }

 private:
  template <class T>
  static at::Tensor copy(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType dtype) {
    at::Tensor tensor = at::empty(shape, dtype);
    std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<T>());
    return tensor;
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int num_threads) { return std::make_unique<CpuDevice>(num_threads); }

}  // namespace assay
