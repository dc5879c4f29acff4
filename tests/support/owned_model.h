#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "harness/device/device.h"
#include "harness/train/load_model.h"
#include "model/transformer.h"
#include "tests/support/small_model.h"

namespace assay {

struct ModelDtypes {
  at::ScalarType weights = at::kFloat;
  std::optional<at::ScalarType> gradients = at::kFloat;  ///< nullopt: none beforehand
};

// A model whose parameters own their memory, as the sharding would give them it: gradients are views of flat buffers.
struct OwnedModel {
  explicit OwnedModel(const ModelConfig& config, const TransformerOptions& options = {}, ModelDtypes dtypes = {},
                      std::unique_ptr<Device> on = make_cpu_device(1))
      : device(std::move(on)), model(config, options, *device) {
    const auto zeros = [&](at::IntArrayRef shape, at::ScalarType dtype) {
      return at::zeros(shape, at::device(device->torch_device()).dtype(dtype));
    };
    for (auto* parameter : parameters()) {
      parameter->value = zeros(parameter->shape, dtypes.weights).requires_grad_();
      if (!dtypes.gradients) continue;
      const at::Tensor flat = zeros({16 + parameter->numel()}, *dtypes.gradients);
      parameter->value.mutable_grad() = flat.narrow(0, 16, parameter->numel()).view(parameter->shape);
    }
  }

  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> result;
    for (auto& unit : model.units()) {
      for (auto& parameter : unit.parameters) result.push_back(&parameter);
    }
    return result;
  }

  void load(const std::filesystem::path& folder) {
    load_model_weights(model, folder, [this](std::size_t unit, std::size_t i, const at::Tensor& values) {
      model.units()[unit].parameters[i].value.detach().copy_(values);
    });
  }

  void initialize(std::uint64_t seed) {
    auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(seed);
    for (auto* parameter : parameters()) initialize_parameter(*parameter, model.config(), generator);
  }

  void zero_gradients() {
    for (auto* parameter : parameters()) parameter->value.mutable_grad().zero_();
  }

  std::unique_ptr<Device> device;
  Transformer model;
};

}  // namespace assay
