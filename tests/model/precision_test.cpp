#include <cmath>
#include <memory>
#include <string>
#include <tuple>

#include "harness/memory/tracking_allocator.h"
#include "model/functions.h"
#include "tests/model/gradient_check.h"
#include "tests/model/reference_functions.h"

namespace assay {
namespace {

// The largest relative error of one rounding.
double unit_roundoff(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11; }

// Every function in bf16 and fp16, adding to gradients in fp32 and in its own dtype.
class LowPrecision : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  // `num_roundings` of results and of gradients of activations; of weights' gradients there is none in fp32, one where
  // it is handed on, and one more where it is added to what is there.
  static Precision precision(std::size_t num_activations, double num_roundings = 1) {
    const auto [dtype, fp32_gradients] = GetParam();
    const double unit = unit_roundoff(dtype);
    Precision result{dtype, fp32_gradients ? at::kFloat : dtype, num_activations};
    result.results = num_roundings * unit;
    // Gradients of activations are added up by autograd in these tests: one rounding more.
    result.activation_gradients = (num_roundings + 1) * unit;
    result.weight_gradients = fp32_gradients ? kTolerance : 2 * unit;
    result.handed_weight_gradients = unit;
    return result;
  }
};

TEST_P(LowPrecision, Linears) {
  expect_equal(
      [](const Tensors& t) {
        return ops::linears(t[0], {t[1], t[2], t[3]});
      },
      [](const Tensors& t) {
        return Tensors{at::matmul(t[0], t[1].t()), at::matmul(t[0], t[2].t()), at::matmul(t[0], t[3].t())};
      },
      {normal({3, 5, 24}, 1), normal({40, 24}, 2), normal({16, 24}, 3), normal({17, 24}, 4)}, 0, precision(1));
}

TEST_P(LowPrecision, EmbeddingAddsUpTokensThatRepeatInFp32) {
  expect_equal([](const Tensors& t) { return Tensors{ops::embedding(t[0], t[1])}; },
               [](const Tensors& t) {
                 return Tensors{at::index_select(t[0], 0, t[1].reshape({-1})).view({4, 32, 12})};
               },
               {normal({11, 12}, 1), integers(11, {4, 32}, 2)}, 0, precision(0));
}

TEST_P(LowPrecision, RmsNorm) {
  expect_equal(
      [](const Tensors& t) {
        const auto result = ops::rms_norm(t[0], t[1], 1e-5);
        return Tensors{result.normed, result.residual};
      },
      [](const Tensors& t) { return reference_norm(t[0], t[1], 1e-5); }, {normal({2, 9, 48}, 1), normal({48}, 2)}, 0,
      precision(1));
}

TEST_P(LowPrecision, Rotary) {
  const at::Tensor angles = normal({9, 1, 8}, 5) * 3;
  expect_equal([](const Tensors& t) { return Tensors{ops::rotary(t[0], t[1], t[2])}; }, reference_rotary,
               {normal({2, 9, 3, 16}, 1), at::cos(angles), at::sin(angles)}, 2, precision(1));
}

// silu, product: each rounded.
TEST_P(LowPrecision, Swiglu) {
  expect_equal([](const Tensors& t) { return Tensors{ops::swiglu(t[0], t[1])}; }, reference_swiglu,
               {normal({2, 9, 40}, 1) * 3, normal({2, 9, 40}, 2)}, 0, precision(2, 2));
}

// Backward starts from the rounded output: its error, 1 u of each row's sum, reaches the gradients.
TEST_P(LowPrecision, CausalAttention) {
  expect_equal(
      [](const Tensors& t) {
        return Tensors{ops::causal_attention(ops::AttentionKernel::flash_cpu, t[0], t[1], t[2])};
      },
      [](const Tensors& t) { return Tensors{reference_attention(t[0], t[1], t[2])}; },
      {normal({2, 33, 4, 16}, 1), normal({2, 33, 2, 16}, 2), normal({2, 33, 2, 16}, 3)}, 0, precision(3, 2));
}

TEST_P(LowPrecision, LinearCrossEntropyGivesItsLossInFp32) {
  for (const std::int64_t chunk : {7, 1024}) {
    Precision wanted = precision(1);
    wanted.results = kTolerance;
    expect_equal([&](const Tensors& t) { return Tensors{ops::linear_cross_entropy(t[0], t[1], t[2], t[3], chunk)}; },
                 reference_cross_entropy,
                 {normal({37, 24}, 1), normal({53, 24}, 2), integers(53, {37}, 3), normal({37}, 4).abs_() / 20}, 1,
                 wanted);
  }
}

// C16: a loss near 36 on the grid of bf16 could only move by 0.25.
TEST_P(LowPrecision, ALargeLossIsNotRounded) {
  const auto dtype = std::get<0>(GetParam());
  const at::Tensor x = (normal({1, 24}, 1) * 2.5).to(dtype);
  const at::Tensor weight = (normal({53, 24}, 2) * 2.5).to(dtype);
  const at::Tensor target = at::matmul(x, weight.t()).argmin(1);
  const at::Tensor one = at::ones({1});
  const double loss = ops::linear_cross_entropy(x, weight, target, one, 1024).item<double>();
  const double expected =
      reference_cross_entropy({x.to(at::kDouble), weight.to(at::kDouble), target, one})[0].item<double>();
  EXPECT_GT(expected, 30);
  EXPECT_NEAR(loss, expected, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LowPrecision,
                         ::testing::Combine(::testing::Values(at::kBFloat16, at::kHalf), ::testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(std::get<0>(parameters.param) == at::kHalf ? "fp16" : "bf16") +
                                  (std::get<1>(parameters.param) ? "_fp32_gradients" : "_own_gradients");
                         });

// A power of two as scale: the same bits, shifted.
TEST(GradScale, MultipliesTheGradientsAndNotTheLoss) {
  const auto run = [](double scale) {
    const at::Tensor x = normal({37, 24}, 1).to(at::kFloat).requires_grad_();
    const at::Tensor weight = normal({53, 24}, 2).to(at::kFloat).requires_grad_();
    weight.mutable_grad() = at::zeros_like(weight);
    const at::Tensor token_weights = normal({37}, 4).abs_().to(at::kFloat) / 20;
    const at::Tensor loss = ops::linear_cross_entropy(x, weight, integers(53, {37}, 3), token_weights, 7, scale);
    loss.backward();
    return Tensors{loss.detach(), x.grad(), weight.grad()};
  };
  const Tensors plain = run(1);
  const Tensors scaled = run(1024);
  EXPECT_TRUE(at::equal(plain[0], scaled[0]));
  EXPECT_GT(plain[1].norm().item<double>(), 0);
  EXPECT_TRUE(at::equal(plain[1] * 1024, scaled[1]));
  EXPECT_TRUE(at::equal(plain[2] * 1024, scaled[2]));
}

// Gradients too small for fp16, 6e-8, are there if they are multiplied before they are rounded.
TEST(GradScale, SavesWhatFp16WouldRoundToZero) {
  const auto gradient = [](at::ScalarType dtype, double scale) {
    const at::Tensor x = normal({37, 24}, 1).to(at::kHalf).to(dtype).requires_grad_();
    const at::Tensor weight = normal({53, 24}, 2).to(at::kHalf).to(dtype);
    const at::Tensor token_weights = at::full({37}, 1e-9);
    ops::linear_cross_entropy(x, weight, integers(53, {37}, 3), token_weights, 7, scale).backward();
    return x.grad();
  };
  EXPECT_EQ(gradient(at::kHalf, 1).abs().max().item<float>(), 0);
  const at::Tensor expected = gradient(at::kFloat, 0x1p24).to(at::kDouble);
  EXPECT_LE(relative_error(gradient(at::kHalf, 0x1p24), expected), unit_roundoff(at::kHalf));
}

// Bytes that are alive after a function beside its results: what it saved that was not there before.
TEST(SavedForBackward, IsInputsAndLittleElse) {
  install_tracking_allocators();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(dtype));
    const auto input = [&](at::IntArrayRef shape) { return normal(shape, 1).to(dtype).requires_grad_(); };
    const at::Tensor x = input({2, 128, 512});
    const at::Tensor up = input({2, 128, 512});
    const at::Tensor weight = input({512});
    const at::Tensor heads = input({2, 128, 4, 64});
    const at::Tensor cos = normal({128, 1, 32}, 2).to(at::kFloat);
    const auto saved_bytes = [](const std::function<at::Tensor()>& function) {
      const auto ledger = std::make_shared<MemoryLedger>();
      const LedgerScope scope(ledger);
      const at::Tensor result = function();
      return ledger->allocated_bytes() - static_cast<std::int64_t>(result.nbytes());
    };
    const std::int64_t one_fp32_a_token = 2 * 128 * 4;
    EXPECT_EQ(saved_bytes([&] { return ops::rms_norm(x, weight, 1e-5).normed; }), one_fp32_a_token);
    EXPECT_EQ(saved_bytes([&] { return ops::rotary(heads, cos, cos); }), 0);
    EXPECT_EQ(saved_bytes([&] { return ops::swiglu(x, up); }), 0);
    EXPECT_EQ(saved_bytes([&] { return ops::causal_attention(ops::AttentionKernel::flash_cpu, heads, heads, heads); }),
              4 * one_fp32_a_token);
  }
}

}  // namespace
}  // namespace assay
