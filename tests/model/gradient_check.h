#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

// Each function in fp32 against a composite of plain operators in fp64, whose gradients are autograd's own.
//
// The tolerance is on |ours - reference| / |reference| of a whole tensor. An element is a sum of at most some 200
// products, each step rounded to 6e-8: with random signs 200^(1/2) x 6e-8 = 8e-7. A wrong term shows at 1e-2 or more.
//
// In bf16 and fp16 both sides start from inputs rounded to the dtype. What is rounded once is off by at most half a
// last place, u = 2^-8 or 2^-11, and by some 0.5 u in the root mean square; what a node sums up in fp32 is as exact as
// in fp32.

namespace assay {

inline constexpr double kTolerance = 2e-6;

// What is computed in, and how exact it must be.
struct Precision {
  at::ScalarType dtype = at::kFloat;
  at::ScalarType gradients = at::kFloat;  ///< dtype of those that exist beforehand
  std::size_t num_activations = 0;        ///< inputs before the weights
  double results = kTolerance;
  double activation_gradients = kTolerance;
  double weight_gradients = kTolerance;         ///< into a grad() of `gradients`
  double handed_weight_gradients = kTolerance;  ///< where there is no grad()
};

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

inline at::Generator generator(std::uint64_t seed) {
  auto result = at::globalContext().defaultGenerator(at::kCPU).clone();
  result.set_current_seed(seed);
  return result;
}

inline at::Tensor normal(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, generator(seed), at::kDouble);
}

inline at::Tensor integers(std::int64_t bound, at::IntArrayRef shape, std::uint64_t seed) {
  return at::randint(0, bound, shape, generator(seed), at::kLong);
}

inline bool is_float(const at::Tensor& tensor) { return tensor.is_floating_point(); }

// Copies in one precision, the floating ones as leaves.
inline Tensors leaves(const Tensors& inputs, at::ScalarType dtype) {
  Tensors result;
  for (const auto& input : inputs) {
    result.push_back(is_float(input) ? input.to(dtype, false, true).requires_grad_() : input);
  }
  return result;
}

inline double relative_error(const at::Tensor& ours, const at::Tensor& reference) {
  return ((ours.detach().to(at::kDouble) - reference.detach()).norm() / reference.detach().norm()).item<double>();
}

// Backward from all results at once, against fixed random gradients in one precision; from a single sum as a loss is,
// with 1.
inline void backward(const Tensors& results, at::ScalarType dtype) {
  Tensors gradients;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const bool is_loss = results[i].numel() == 1;
    gradients.push_back(is_loss ? at::ones_like(results[i])
                                : normal(results[i].sizes(), 1000 + i).to(dtype).to(results[i].scalar_type()));
  }
  torch::autograd::backward(results, gradients);
}

// Results and the gradients of all floating inputs but the last `num_constants`, which stay fp32; then the same with
// gradients that exist beforehand, on top of which the new ones must be added in the same memory.
inline void expect_equal(const Function& ours, const Function& reference, const Tensors& inputs,
                         std::size_t num_constants = 0, const Precision& precision = {}) {
  const std::size_t num_leaves = inputs.size() - num_constants;
  // fp32 inputs are not rounded for the reference: that error is part of the tolerance.
  const auto prepare = [&](bool is_reference) {
    Tensors result;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto dtype = i < num_leaves ? precision.dtype : at::kFloat;
      const at::Tensor& input = inputs[i];
      if (!is_float(input)) {
        result.push_back(input);
      } else if (is_reference) {
        result.push_back(dtype == at::kFloat ? input.clone() : input.to(dtype).to(at::kDouble));
      } else {
        result.push_back(input.to(dtype, false, true));
      }
      if (is_float(input) && i < num_leaves) result[i].requires_grad_();
    }
    return result;
  };
  const Tensors theirs = prepare(true);
  const Tensors their_results = reference(theirs);
  const auto gradient_dtype = precision.dtype == at::kFloat ? at::kDouble : precision.dtype;
  backward(their_results, gradient_dtype);

  for (const bool grads_exist : {false, true}) {
    SCOPED_TRACE(grads_exist ? "gradients exist beforehand" : "no gradients beforehand");
    Tensors mine = prepare(false);
    Tensors before(mine.size());
    Tensors flat(mine.size());
    for (std::size_t i = 0; grads_exist && i < mine.size(); ++i) {
      if (!mine[i].requires_grad()) continue;
      flat[i] = normal({mine[i].numel() + 32}, 2000 + i).to(precision.gradients);
      mine[i].mutable_grad() = flat[i].narrow(0, 16, mine[i].numel()).view(mine[i].sizes());
      before[i] = flat[i].to(at::kDouble, false, true);
    }
    const Tensors my_results = ours(mine);
    ASSERT_EQ(my_results.size(), their_results.size());
    for (std::size_t i = 0; i < my_results.size(); ++i) {
      ASSERT_EQ(my_results[i].sizes(), their_results[i].sizes());
      EXPECT_LE(relative_error(my_results[i], their_results[i]), precision.results) << "result " << i;
    }
    backward(my_results, gradient_dtype);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (!mine[i].requires_grad()) continue;
      ASSERT_TRUE(mine[i].grad().defined()) << "input " << i;
      const double weight_tolerance = grads_exist ? precision.weight_gradients : precision.handed_weight_gradients;
      const double tolerance = i < precision.num_activations ? precision.activation_gradients : weight_tolerance;
      if (!grads_exist) {
        EXPECT_EQ(mine[i].grad().scalar_type(), precision.dtype);
        EXPECT_LE(relative_error(mine[i].grad(), theirs[i].grad()), tolerance) << "gradient of input " << i;
        continue;
      }
      EXPECT_TRUE(mine[i].grad().is_alias_of(flat[i])) << "gradient of input " << i << " left its buffer";
      at::Tensor expected = before[i];
      expected.narrow(0, 16, mine[i].numel()).add_(theirs[i].grad().reshape({-1}));
      EXPECT_LE(relative_error(flat[i], expected), tolerance) << "gradient of input " << i;
      EXPECT_TRUE(at::equal(flat[i].narrow(0, 0, 16), expected.narrow(0, 0, 16).to(precision.gradients)))
          << "before the buffer";
    }
  }
}

}  // namespace assay
