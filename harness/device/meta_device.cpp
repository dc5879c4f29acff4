#include <ATen/ops/empty.h>

#include "harness/device/device.h"
#include "harness/device/meta_target.h"

namespace assay {
namespace {

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(const MetaTarget& target) : target_(target) {}

  c10::Device torch_device() const override { return c10::Device(c10::kMeta); }

  at::Tensor upload(const std::vector<double>& values) override {
    return empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  }
  at::Tensor upload(const std::vector<float>& /*values*/, at::IntArrayRef shape) override {
    return empty(shape, at::kFloat);
  }
  at::Tensor upload(const std::function<std::vector<float>()>& /*values*/, at::IntArrayRef shape) override {
    return empty(shape, at::kFloat);
  }
  at::Tensor upload(const std::vector<std::int64_t>& /*values*/, at::IntArrayRef shape) override {
    return empty(shape, at::kLong);
  }

  std::vector<double> read(const at::Tensor& values) override {
    return std::vector<double>(static_cast<std::size_t>(values.numel()), 0.0);
  }

 private:
  static at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
    return at::empty(shape, at::device(at::kMeta).dtype(dtype));
  }

  MetaTargetScope target_;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(const MetaTarget& target) { return std::make_unique<MetaDevice>(target); }

}  // namespace assay
