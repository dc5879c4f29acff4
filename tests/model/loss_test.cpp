#include "model/functions.h"
#include "tests/model/gradient_check.h"
#include "tests/model/reference_functions.h"

namespace assay {
namespace {

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
               reference_cross_entropy, inputs(), 1);
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

}  // namespace
}  // namespace assay
