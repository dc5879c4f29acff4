#include "sharding/low_precision_adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace assay {
namespace {

/// Flat tensors of one buffer.
struct Buffer {
  Buffer(std::int64_t numel, at::ScalarType parameters, at::ScalarType gradients, at::ScalarType moments)
      : parameter(at::zeros({numel}, parameters)),
        gradient(at::zeros({numel}, gradients)),
        exp_avg(at::zeros({numel}, moments)),
        exp_avg_sq(at::zeros({numel}, moments)) {}

  void step(const AdamWUpdate& update, double divisor = 1) const {
    low_precision_adamw(parameter, gradient, exp_avg, exp_avg_sq, update, at::full({1}, divisor, at::kFloat), 0);
  }

  at::Tensor parameter, gradient, exp_avg, exp_avg_sq;
};

AdamWUpdate plain(double rate, std::uint64_t seed) { return {rate, 0.9, 0.95, 0, 1e-8, 1, seed}; }

at::Tensor waves(std::int64_t numel, double speed) { return (at::arange(numel, at::kDouble) * speed).sin(); }

// The first update is rate x sign(gradient), here 1e-4 of the weights: a fiftieth of what bf16 can tell apart, so to
// the nearest nothing would ever move. The mean of n elements, each rounded up with probability p, has a standard error
// of ulp x sqrt(p (1 - p) / n). 4.5 of them, with seeds that are fixed.
TEST(LowPrecisionAdamW, SmallUpdatesMoveWeightsByTheirExactMean) {
  constexpr std::int64_t kNumel = 1 << 20;
  for (const double sign : {1.0, -1.0}) {
    for (const double weight : {1.25, -1.25, 3e-3, 768.0}) {
      const Buffer buffer(kNumel, at::kBFloat16, at::kBFloat16, at::kBFloat16);
      buffer.parameter.fill_(weight);
      buffer.gradient.fill_(sign * 0.5);
      const double start = buffer.parameter[0].item<double>();
      const double move = 1e-4 * std::abs(start);
      buffer.step(plain(move, 17));
      const at::Tensor moved = buffer.parameter.to(at::kDouble) - start;
      const double ulp = std::exp2(std::floor(std::log2(std::abs(start))) - 7);
      const double p = move / ulp;
      EXPECT_LT(p, 0.03);
      EXPECT_NEAR(moved.mean().item<double>(), -sign * move, 4.5 * ulp * std::sqrt(p * (1 - p) / kNumel))
          << weight << ", " << sign;
      EXPECT_EQ(moved.abs().max().item<double>(), ulp);  // to a neighbour, not further
      EXPECT_EQ(moved.abs().min().item<double>(), 0);
    }
  }
}

// Other steps and other units draw other bits, and so do neighbours.
TEST(LowPrecisionAdamW, RoundingsAreIndependent) {
  constexpr std::int64_t kNumel = 1 << 18;
  const auto rounded_up = [](std::uint64_t seed) {
    const Buffer buffer(kNumel, at::kBFloat16, at::kFloat, at::kFloat);
    buffer.parameter.fill_(1.0);
    buffer.gradient.fill_(-1.0);
    buffer.step(plain(0x1p-8, seed));  // half an ulp
    return buffer.parameter.gt(1).to(at::kDouble) - 0.5;
  };
  const at::Tensor first = rounded_up(1);
  const double error = 4.5 * 0.25 / std::sqrt(static_cast<double>(kNumel));
  for (const std::uint64_t seed :
       {std::uint64_t{2}, std::uint64_t{1} << 24, std::uint64_t{1} + (std::uint64_t{1} << 24)})
    EXPECT_NEAR((first * rounded_up(seed)).mean().item<double>(), 0, error) << seed;
  for (const std::int64_t lag : {1, 2, 3, 16, 1024}) {
    const at::Tensor product = first.narrow(0, 0, kNumel - lag) * first.narrow(0, lag, kNumel - lag);
    EXPECT_NEAR(product.mean().item<double>(), 0, error) << lag;
  }
}

// C12: rate x decay is 1e-5, far below bf16's resolution of a weight. 1000 steps take away 1 - (1 - 1e-5)^1000. A
// weight's random walk: each step it falls by an ulp with probability p, so its variance is below 1000 p ulp^2.
TEST(LowPrecisionAdamW, WeightDecayIsNotRoundedAway) {
  constexpr std::int64_t kNumel = 1 << 14;
  const Buffer buffer(kNumel, at::kBFloat16, at::kBFloat16, at::kBFloat16);
  buffer.parameter.fill_(1.5);
  AdamWUpdate update = plain(1e-4, 0);
  update.weight_decay = 0.1;
  for (int step = 1; step <= 1000; ++step) {
    update.step = step;
    update.seed = static_cast<std::uint64_t>(step);
    buffer.step(update);
  }
  const double expected = 1.5 * std::pow(1 - 1e-5, 1000);
  const double ulp = 0x1p-7;
  const double error = ulp * std::sqrt(1000 * 1.5e-5 / ulp / kNumel);
  EXPECT_LT(error, 1e-4);
  EXPECT_NEAR(buffer.parameter.to(at::kDouble).mean().item<double>(), expected, 4.5 * error);
  EXPECT_EQ(buffer.exp_avg.abs().max().item<float>(), 0);
}

// bf16 moments: beta2 0.999 takes a thousandth of exp_avg_sq away, a quarter of its ulp: to the nearest it would stay.
TEST(LowPrecisionAdamW, MomentsInBf16DecayByTheirExactMean) {
  constexpr std::int64_t kNumel = 1 << 18;
  const Buffer buffer(kNumel, at::kBFloat16, at::kBFloat16, at::kBFloat16);
  buffer.exp_avg.fill_(1.0);
  buffer.exp_avg_sq.fill_(1.0);
  AdamWUpdate update{0, 0.999, 0.999, 0, 1e-8, 1, 5};
  double expected = 1;
  for (int step = 1; step <= 100; ++step) {
    update.step = step;
    update.seed = static_cast<std::uint64_t>(step);
    buffer.step(update);
    expected *= 0.999;
  }
  // Below 1 an ulp is 2^-8; at most a quarter of the elements move a step.
  const double error = 0x1p-8 * std::sqrt(100 * 0.25 / kNumel);
  for (const auto& moment : {buffer.exp_avg, buffer.exp_avg_sq})
    EXPECT_NEAR(moment.to(at::kDouble).mean().item<double>(), expected, 4.5 * error);
  EXPECT_TRUE(buffer.parameter.eq(0).all().item<bool>());
}

// The same arithmetic as PyTorch's fused update where all is fp32: a few roundings apart (2^-23 each) after 10 steps.
TEST(LowPrecisionAdamW, InFp32EqualsTheFusedUpdate) {
  constexpr std::int64_t kNumel = 1000;
  const Buffer mine(kNumel, at::kFloat, at::kFloat, at::kFloat);
  const Buffer fused(kNumel, at::kFloat, at::kFloat, at::kFloat);
  for (const auto* buffer : {&mine, &fused}) buffer->parameter.copy_(waves(kNumel, 0.7) + 2);
  const at::Tensor steps = at::zeros({1});
  AdamWUpdate update{0.01, 0.9, 0.95, 0.1, 1e-8, 1, 0};
  for (int step = 1; step <= 10; ++step) {
    for (const auto* buffer : {&mine, &fused}) buffer->gradient.copy_(waves(kNumel, 0.3 * step).mul(step));
    update.step = step;
    mine.step(update, 1.5);
    steps.fill_(step);
    at::_fused_adamw_({fused.parameter}, {fused.gradient}, {fused.exp_avg}, {fused.exp_avg_sq}, {}, {steps}, 0.01, 0.9,
                      0.95, 0.1, 1e-8, false, false, at::full({1}, 1.5F), {});
  }
  EXPECT_TRUE(at::allclose(mine.parameter, fused.parameter, 10 * 0x1p-23, 0));
  EXPECT_TRUE(at::allclose(mine.exp_avg, fused.exp_avg, 10 * 0x1p-23, 1e-6));
  EXPECT_TRUE(at::allclose(mine.exp_avg_sq, fused.exp_avg_sq, 20 * 0x1p-23, 1e-6));
}

TEST(LowPrecisionAdamW, PartsOfABufferGetTheBitsOfTheWhole) {
  constexpr std::int64_t kNumel = 200'000;  // more than one grain of threads
  const auto filled = [&](Buffer buffer) {
    buffer.parameter.copy_(waves(kNumel, 0.7));
    buffer.gradient.copy_(waves(kNumel, 0.3));
    return buffer;
  };
  for (const auto moments : {at::kBFloat16, at::kFloat}) {
    const Buffer whole = filled(Buffer(kNumel, at::kBFloat16, at::kBFloat16, moments));
    whole.step(plain(1e-3, 9));
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, std::int64_t{16}, std::int64_t{99'999}, kNumel}) {
      const Buffer parts = filled(Buffer(kNumel, at::kBFloat16, at::kBFloat16, moments));
      for (const auto& [first, size] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, kNumel - cut}}) {
        const auto part = [first = first, size = size](const at::Tensor& tensor) {
          return tensor.narrow(0, first, size);
        };
        low_precision_adamw(part(parts.parameter), part(parts.gradient), part(parts.exp_avg), part(parts.exp_avg_sq),
                            plain(1e-3, 9), at::ones({1}), first);
      }
      EXPECT_TRUE(at::equal(parts.parameter, whole.parameter)) << cut;
      EXPECT_TRUE(at::equal(parts.exp_avg, whole.exp_avg)) << cut;
      EXPECT_TRUE(at::equal(parts.exp_avg_sq, whole.exp_avg_sq)) << cut;
    }
  }
}

// What bf16 holds stays as it is, up to the largest finite value and down to the smallest; what is not finite stays so.
TEST(LowPrecisionAdamW, ValuesOfBf16AreNotTouchedAndNothingNotFiniteIsHidden) {
  const float largest = 0x1.FEp127F;
  const float inf = std::numeric_limits<float>::infinity();
  const Buffer buffer(8, at::kBFloat16, at::kBFloat16, at::kBFloat16);
  const at::Tensor values =
      at::tensor({largest, -largest, inf, -inf, std::nanf(""), 0x1p-133F, -0x1p-133F, 0.0F}).to(at::kBFloat16);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    buffer.parameter.copy_(values);
    buffer.step(plain(1e-3, seed));
    EXPECT_TRUE(at::allclose(buffer.parameter, values, 0, 0, /*equal_nan=*/true)) << buffer.parameter;
  }
  buffer.gradient.copy_(values);
  buffer.parameter.fill_(1);
  buffer.step(plain(1e-3, 1));
  const at::Tensor bad = buffer.parameter.isfinite().logical_not();
  EXPECT_TRUE(bad[2].item<bool>() && bad[3].item<bool>() && bad[4].item<bool>());
}

}  // namespace
}  // namespace assay
