#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "harness/device/device.h"
#include "model/transformer.h"
#include "tests/support/small_model.h"

namespace assay {

// A model whose parameters own their memory, as the sharding would give them it.
struct OwnedModel {
  explicit OwnedModel(const ModelConfig& config, const TransformerOptions& options = {})
      : model(config, options, *device) {
    for (auto& unit : model.units()) {
      for (auto& parameter : unit.parameters) {
        parameter.value = at::zeros(parameter.shape).requires_grad_();
        parameter.value.mutable_grad() = at::zeros(parameter.shape);
      }
    }
  }

  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> result;
    for (auto& unit : model.units()) {
      for (auto& parameter : unit.parameters) result.push_back(&parameter);
    }
    return result;
  }

  void initialize(std::uint64_t seed) {
    auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(seed);
    for (auto* parameter : parameters()) initialize_parameter(*parameter, model.config(), generator);
  }

  std::unique_ptr<Device> device = make_cpu_device(1);
  Transformer model;
};

}  // namespace assay
