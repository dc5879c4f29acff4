#include "model/functions.h"

#include "tests/model/gradient_check.h"
#include "tests/model/reference_functions.h"

namespace assay {
namespace {

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

TEST(Functions, RotaryRotatesHalves) {
  const at::Tensor angles = normal({9, 1, 8}, 5) * 3;
  expect_equal([](const Tensors& t) { return Tensors{ops::rotary(t[0], t[1], t[2])}; }, reference_rotary,
               {normal({2, 9, 3, 16}, 1), at::cos(angles), at::sin(angles)}, 2);
}

TEST(Functions, Swiglu) {
  expect_equal([](const Tensors& t) { return Tensors{ops::swiglu(t[0], t[1])}; }, reference_swiglu,
               {normal({2, 9, 40}, 1) * 3, normal({2, 9, 40}, 2)});
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

// Where a gradient exists beforehand the graph ends at the node: nothing is handed on to be added, which would take
// memory for a second gradient of the weight.
TEST(Functions, WeightGradientsGoStraightIntoTheirBuffers) {
  const at::Tensor ids = integers(8, {2, 6}, 1);
  const at::Tensor x = normal({2, 6, 8}, 2).to(at::kFloat);
  const std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>> cases[] = {
      {"linear", [&](const at::Tensor& weight) { return ops::linear(x, weight).sum(); }},
      {"embedding", [&](const at::Tensor& weight) { return ops::embedding(weight, ids).sum(); }},
      {"rms_norm", [&](const at::Tensor& weight) { return ops::rms_norm(x, weight, 1e-5).normed.sum(); }},
      {"loss", [&](const at::Tensor& weight) {
         return ops::linear_cross_entropy(x.view({12, 8}), weight, ids.view({12}), at::ones({12}), 5);
       }}};
  for (const auto& [name, call] : cases) {
    SCOPED_TRACE(name);
    const bool is_vector = name == std::string("rms_norm");
    const auto run = [&](bool grad_exists) {
      at::Tensor weight = normal({8, 8}, 3).to(at::kFloat);
      if (is_vector) weight = weight[0].clone();
      weight.requires_grad_();
      if (grad_exists) weight.mutable_grad() = at::zeros_like(weight);
      int handed_on = 0;
      weight.register_hook([&](const at::Tensor& gradient) { handed_on += gradient.defined() ? 1 : 0; });
      const at::Tensor result = call(weight);
      const bool complete = grad_exists && weight.grad().abs().sum().item<float>() > 0;
      EXPECT_EQ(complete, grad_exists && name == std::string("loss")) << "only the loss makes gradients while forward";
      result.backward();
      EXPECT_EQ(handed_on, grad_exists ? 0 : 1);
    };
    run(false);
    run(true);
  }
}

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
