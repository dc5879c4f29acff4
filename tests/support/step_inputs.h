#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace assay {

// What one micro-step of a model reads: `rows` x `length` tokens below `vocabulary`, each of the same weight.
struct StepInputs {
  StepInputs(std::int64_t rows, std::int64_t length, std::int64_t vocabulary, std::uint64_t seed) {
    auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(seed);
    ids = at::randint(0, vocabulary, {rows, length}, generator, at::kLong);
    targets = at::randint(0, vocabulary, {rows * length}, generator, at::kLong);
    weights = at::full({rows * length}, 1.0 / static_cast<double>(rows * length), at::kFloat);
  }

  at::Tensor ids;
  at::Tensor targets;
  at::Tensor weights;
};

}  // namespace assay
