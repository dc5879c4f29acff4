#include "model/functions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

// Each function in fp32 against a composite of plain operators in fp64, whose gradients are autograd's own.
//
// The tolerance is on |ours - reference| / |reference| of a whole tensor. An element is a sum of at most some 200
// products, each step rounded to 6e-8: with random signs 200^(1/2) x 6e-8 = 8e-7. A wrong term shows at 1e-2 or more.

namespace assay {
namespace {

constexpr double kTolerance = 2e-6;

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

at::Generator generator(std::uint64_t seed) {
  auto result = at::globalContext().defaultGenerator(at::kCPU).clone();
  result.set_current_seed(seed);
  return result;
}

at::Tensor normal(at::IntArrayRef shape, std::uint64_t seed) { return at::randn(shape, generator(seed), at::kDouble); }

at::Tensor integers(std::int64_t bound, at::IntArrayRef shape, std::uint64_t seed) {
  return at::randint(0, bound, shape, generator(seed), at::kLong);
}

bool is_float(const at::Tensor& tensor) { return tensor.is_floating_point(); }

// Copies in one precision, the floating ones as leaves.
Tensors leaves(const Tensors& inputs, at::ScalarType dtype) {
  Tensors result;
  for (const auto& input : inputs) {
    result.push_back(is_float(input) ? input.to(dtype, false, true).requires_grad_() : input);
  }
  return result;
}

double relative_error(const at::Tensor& ours, const at::Tensor& reference) {
  return ((ours.detach().to(at::kDouble) - reference.detach()).norm() / reference.detach().norm()).item<double>();
}

// Backward from all results at once, against fixed random gradients; from a single sum as a loss is, with 1.
void backward(const Tensors& results) {
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
void expect_equal(const Function& ours, const Function& reference, const Tensors& inputs,
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

TEST(Functions, LinearsOfOneTwoAndThreeWeights) {
  const Tensors inputs{normal({3, 5, 24}, 1), normal({40, 24}, 2), normal({16, 24}, 3), normal({17, 24}, 4)};
  for (std::size_t count = 1; count <= 3; ++count) {
    SCOPED_TRACE(count);
    expect_equal(
        [](const Tensors& t) {
          return ops::linears(t[0], {t.begin() + 1, t.end()});
        },
        [](const Tensors& t) {
          Tensors results;
          for (std::size_t i = 1; i < t.size(); ++i) results.push_back(at::matmul(t[0], t[i].t()));
          return results;
        },
        {inputs.begin(), inputs.begin() + 1 + static_cast<std::ptrdiff_t>(count)});
  }
}

TEST(Functions, LinearOfAMatrixAndOfAnInputWithoutGradient) {
  const auto reference = [](const Tensors& t) { return Tensors{at::matmul(t[0], t[1].t())}; };
  const auto ours = [](const Tensors& t) { return Tensors{ops::linear(t[0], t[1])}; };
  expect_equal(ours, reference, {normal({7, 24}, 1), normal({40, 24}, 2)});
  expect_equal(
      [&](const Tensors& t) {
        return ours({t[1], t[0]});
      },
      [&](const Tensors& t) {
        return reference({t[1], t[0]});
      },
      {normal({40, 24}, 2), normal({7, 24}, 1)}, 1);
}

TEST(Functions, EmbeddingAddsUpTokensThatRepeat) {
  expect_equal([](const Tensors& t) { return Tensors{ops::embedding(t[0], t[1])}; },
               [](const Tensors& t) {
                 return Tensors{at::index_select(t[0], 0, t[1].reshape({-1})).view({4, 32, 12})};
               },
               {normal({11, 12}, 1), integers(11, {4, 32}, 2)});
}

Tensors reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return {x * at::rsqrt(x.square().mean(-1, true) + eps) * weight, x};
}

// Inputs of ordinary size, and of 1e-3 where eps matters (I21).
TEST(Functions, RmsNormWithBothResultsUsed) {
  for (const double size : {1.0, 1e-3}) {
    for (const double eps : {1e-5, 1e-6}) {
      SCOPED_TRACE(std::to_string(size) + ", eps " + std::to_string(eps));
      const Function ours = [&](const Tensors& t) {
        const auto result = ops::rms_norm(t[0], t[1], eps);
        return Tensors{result.normed, result.residual};
      };
      expect_equal(ours, [&](const Tensors& t) { return reference_norm(t[0], t[1], eps); },
                   {normal({2, 9, 48}, 1) * size, normal({48}, 2)});
      const Function normed_only = [&](const Tensors& t) { return Tensors{ops::rms_norm(t[0], t[1], eps).normed}; };
      expect_equal(normed_only, [&](const Tensors& t) { return Tensors{reference_norm(t[0], t[1], eps)[0]}; },
                   {normal({2, 9, 48}, 1) * size, normal({48}, 2)});
    }
  }
  const at::Tensor x = normal({4, 16}, 1).to(at::kFloat) * 1e-3;
  const at::Tensor weight = at::ones({16});
  const double ratio =
      (ops::rms_norm(x, weight, 1e-6).normed.norm() / ops::rms_norm(x, weight, 1e-5).normed.norm()).item<double>();
  EXPECT_GT(ratio, 2) << "eps must show where inputs are small";
}

// transformers' apply_rotary_pos_emb: x cos + rotate_half(x) sin.
TEST(Functions, RotaryRotatesHalves) {
  const at::Tensor angles = normal({9, 1, 8}, 5) * 3;
  expect_equal([](const Tensors& t) { return Tensors{ops::rotary(t[0], t[1], t[2])}; },
               [](const Tensors& t) {
                 const at::Tensor first = t[0].narrow(-1, 0, 8);
                 const at::Tensor second = t[0].narrow(-1, 8, 8);
                 const at::Tensor rotated = at::cat({-second, first}, -1);
                 return Tensors{t[0] * at::cat({t[1], t[1]}, -1) + rotated * at::cat({t[2], t[2]}, -1)};
               },
               {normal({2, 9, 3, 16}, 1), at::cos(angles), at::sin(angles)}, 2);
}

TEST(Functions, Swiglu) {
  expect_equal([](const Tensors& t) { return Tensors{ops::swiglu(t[0], t[1])}; },
               [](const Tensors& t) { return Tensors{t[0] / (1 + at::exp(-t[0])) * t[1]}; },
               {normal({2, 9, 40}, 1) * 3, normal({2, 9, 40}, 2)});
}

// Scores of all pairs, those of later keys taken out, query head h on key head h / (H / K).
at::Tensor reference_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const std::int64_t group = query.size(2) / key.size(2);
  const auto heads_outside = [&](const at::Tensor& t) { return t.transpose(1, 2); };
  const at::Tensor k = heads_outside(at::repeat_interleave(key, group, 2));
  const at::Tensor v = heads_outside(at::repeat_interleave(value, group, 2));
  const at::Tensor scores =
      at::matmul(heads_outside(query), k.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor later = at::ones({query.size(1), query.size(1)}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(later, -INFINITY), -1);
  return at::matmul(weights, v).transpose(1, 2).reshape({query.size(0), query.size(1), -1});
}

TEST(Functions, CausalAttentionWithAndWithoutSharedKeys) {
  for (const std::int64_t kv_heads : {4, 2, 1}) {
    for (const std::int64_t length : {2, 33, 200}) {
      SCOPED_TRACE(std::to_string(kv_heads) + " key heads, length " + std::to_string(length));
      expect_equal(
          [](const Tensors& t) {
            return Tensors{ops::causal_attention(ops::AttentionKernel::flash_cpu, t[0], t[1], t[2])};
          },
          [](const Tensors& t) { return Tensors{reference_attention(t[0], t[1], t[2])}; },
          {normal({2, length, 4, 16}, 1), normal({2, length, kv_heads, 16}, 2), normal({2, length, kv_heads, 16}, 3)});
    }
  }
}

// 37 tokens, every third ignored, the rest weighted unequally.
class LinearCrossEntropy : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static Tensors inputs() {
    at::Tensor weights = normal({37}, 4).abs_() / 20;
    for (std::int64_t i = 0; i < 37; i += 3) weights[i] = 0;
    return {normal({37, 24}, 1), normal({53, 24}, 2), integers(53, {37}, 3), weights};
  }
};

TEST_P(LinearCrossEntropy, EqualsTheCompositeWithAllLogits) {
  const std::int64_t chunk = GetParam();
  expect_equal([&](const Tensors& t) { return Tensors{ops::linear_cross_entropy(t[0], t[1], t[2], t[3], chunk)}; },
               [](const Tensors& t) {
                 const at::Tensor logits = at::matmul(t[0], t[1].t());
                 const at::Tensor scores = logits - at::logsumexp(logits, {1}, true);
                 return Tensors{-(at::gather(scores, 1, t[2].unsqueeze(1)).squeeze(1) * t[3]).sum().reshape({1})};
               },
               inputs(), 1);
}

TEST_P(LinearCrossEntropy, WithoutGradientsIsTheSameLossAndLeavesNone) {
  const Tensors t = leaves(inputs(), at::kFloat);
  const at::Tensor weights = t[3].detach();
  const at::Tensor with = ops::linear_cross_entropy(t[0], t[1], t[2], weights, GetParam());
  t[1].mutable_grad() = at::zeros_like(t[1]);
  const at::NoGradGuard no_grad;
  const at::Tensor without = ops::linear_cross_entropy(t[0], t[1], t[2], weights, GetParam());
  EXPECT_EQ(with.item<double>(), without.item<double>());
  EXPECT_EQ(t[1].grad().abs().max().item<float>(), 0);
}

// Ignored tokens count nothing at all, however large their logits are.
TEST_P(LinearCrossEntropy, IgnoredTokensGiveExactlyNothing) {
  const Tensors values = inputs();
  at::Tensor x = values[0].clone();
  x[0] = 100;  // token 0 is ignored
  const auto run = [&](const at::Tensor& tokens) {
    Tensors t = leaves({tokens, values[1], values[2], values[3]}, at::kFloat);
    const at::Tensor loss = ops::linear_cross_entropy(t[0], t[1], t[2], t[3].detach(), GetParam());
    loss.backward();
    return Tensors{loss.detach(), t[0].grad(), t[1].grad()};
  };
  const Tensors plain = run(values[0]);
  const Tensors huge = run(x);
  EXPECT_TRUE(at::equal(plain[0], huge[0]));
  EXPECT_EQ(huge[1][0].abs().max().item<float>(), 0);
  EXPECT_TRUE(at::equal(plain[1], huge[1]));
  EXPECT_TRUE(at::equal(plain[2], huge[2]));
}

INSTANTIATE_TEST_SUITE_P(Chunks, LinearCrossEntropy, ::testing::Values(1, 7, 36, 37, 1024));

// A gradient whose rows all lie in the same memory is as good as any.
TEST(Functions, GradientsOfAnyLayoutAreTaken) {
  const auto sum_of_rows = [](const at::Tensor& y) { return Tensors{at::sum(y, at::IntArrayRef{0})}; };
  expect_equal([&](const Tensors& t) { return sum_of_rows(ops::rms_norm(ops::linear(t[0], t[1]), t[2], 1e-5).normed); },
               [&](const Tensors& t) { return sum_of_rows(reference_norm(at::matmul(t[0], t[1].t()), t[2], 1e-5)[0]); },
               {normal({2, 6, 8}, 1), normal({8, 8}, 2), normal({8}, 3)});
  expect_equal([&](const Tensors& t) { return sum_of_rows(ops::swiglu(ops::linear(t[0], t[1]), t[2])); },
               [&](const Tensors& t) {
                 const at::Tensor gate = at::matmul(t[0], t[1].t());
                 return sum_of_rows(gate / (1 + at::exp(-gate)) * t[2]);
               },
               {normal({2, 6, 8}, 1), normal({8, 8}, 2), normal({2, 6, 8}, 3)});
}

}  // namespace
}  // namespace assay
