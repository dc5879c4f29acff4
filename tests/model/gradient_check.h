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

namespace assay {

inline constexpr double kTolerance = 2e-6;

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

// Backward from all results at once, against fixed random gradients; from a single sum as a loss is, with 1.
inline void backward(const Tensors& results) {
  Tensors gradients;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const bool is_loss = results[i].numel() == 1;
    gradients.push_back(is_loss ? at::ones_like(results[i])
                                : normal(results[i].sizes(), 1000 + i).to(results[i].scalar_type()));
  }
  torch::autograd::backward(results, gradients);
}

// Results and the gradients of all floating inputs but the last `num_constants`; then the same with gradients that
// exist beforehand, on top of which the new ones must be added in the same memory.
inline void expect_equal(const Function& ours, const Function& reference, const Tensors& inputs,
                         std::size_t num_constants = 0) {
  const auto prepare = [&](at::ScalarType dtype) {
    Tensors result = leaves(inputs, dtype);
    for (std::size_t i = inputs.size() - num_constants; i < inputs.size(); ++i) {
      if (is_float(result[i])) result[i].requires_grad_(false);
    }
    return result;
  };
  const Tensors theirs = prepare(at::kDouble);
  const Tensors their_results = reference(theirs);
  backward(their_results);

  for (const bool grads_exist : {false, true}) {
    SCOPED_TRACE(grads_exist ? "gradients exist beforehand" : "no gradients beforehand");
    Tensors mine = prepare(at::kFloat);
    Tensors before(mine.size());
    Tensors flat(mine.size());
    for (std::size_t i = 0; grads_exist && i < mine.size(); ++i) {
      if (!mine[i].requires_grad()) continue;
      flat[i] = normal({mine[i].numel() + 32}, 2000 + i).to(at::kFloat);
      mine[i].mutable_grad() = flat[i].narrow(0, 16, mine[i].numel()).view(mine[i].sizes());
      before[i] = flat[i].to(at::kDouble, false, true);
    }
    const Tensors my_results = ours(mine);
    ASSERT_EQ(my_results.size(), their_results.size());
    for (std::size_t i = 0; i < my_results.size(); ++i) {
      ASSERT_EQ(my_results[i].sizes(), their_results[i].sizes());
      EXPECT_LE(relative_error(my_results[i], their_results[i]), kTolerance) << "result " << i;
    }
    backward(my_results);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (!mine[i].requires_grad()) continue;
      ASSERT_TRUE(mine[i].grad().defined()) << "input " << i;
      if (!grads_exist) {
        EXPECT_LE(relative_error(mine[i].grad(), theirs[i].grad()), kTolerance) << "gradient of input " << i;
        continue;
      }
      EXPECT_TRUE(mine[i].grad().is_alias_of(flat[i])) << "gradient of input " << i << " left its buffer";
      at::Tensor expected = before[i];
      expected.narrow(0, 16, mine[i].numel()).add_(theirs[i].grad().reshape({-1}));
      EXPECT_LE(relative_error(flat[i], expected), kTolerance) << "gradient of input " << i;
      EXPECT_TRUE(at::equal(flat[i].narrow(0, 0, 16), expected.narrow(0, 0, 16).to(at::kFloat))) << "before the buffer";
    }
  }
}

}  // namespace assay
