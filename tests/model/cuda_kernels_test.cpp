// The operators that only a CUDA device has, with stand-ins on the CPU that do what their documentation says: so the
// network's own part of the way through them (layouts, shared keys, saved tensors, dtypes) is held against the
// references.
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "model/functions.h"
#include "tests/model/gradient_check.h"
#include "tests/model/reference_functions.h"

namespace assay {
namespace {

using at::Tensor;

struct Parts {
  Tensor query, key, value, weights;
};

// All heads outside and in fp64: [B, H, L, D], shared keys repeated, and the attention weights [B, H, L, L].
Parts parts_of(const Tensor& query, const Tensor& key, const Tensor& value) {
  const std::int64_t group = query.size(1) / key.size(1);
  const auto repeated = [&](const Tensor& x) { return at::repeat_interleave(x.to(at::kDouble), group, 1); };
  Parts parts{query.to(at::kDouble), repeated(key), repeated(value), {}};
  const Tensor scores =
      at::matmul(parts.query, parts.key.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const Tensor later = at::ones({query.size(2), query.size(2)}, at::kBool).triu(1);
  parts.weights = at::softmax(scores.masked_fill(later, -INFINITY), -1);
  return parts;
}

std::tuple<Tensor, Tensor> attend(const Tensor& query, const Tensor& key, const Tensor& value, double dropout,
                                  bool is_causal) {
  TORCH_CHECK(dropout == 0 && is_causal);
  const Parts parts = parts_of(query, key, value);
  return {at::matmul(parts.weights, parts.value).to(query.scalar_type()), parts.weights.select(3, 0).to(at::kFloat)};
}

std::tuple<Tensor, Tensor, Tensor> attend_backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                   const Tensor& value, const Tensor& output, const Tensor& kept) {
  const auto [again, kept_again] = attend(query, key, value, 0, true);
  TORCH_CHECK(at::allclose(output, again, 1e-2, 1e-2) && at::equal(kept, kept_again), "not what forward made of this");
  const Parts parts = parts_of(query, key, value);
  const Tensor to_weights = at::matmul(grad.to(at::kDouble), parts.value.transpose(2, 3));
  const Tensor to_scores = parts.weights * (to_weights - (to_weights * parts.weights).sum(-1, true)) /
                           std::sqrt(static_cast<double>(query.size(3)));
  const auto summed = [&](const Tensor& gradient) {
    return gradient.unflatten(1, {key.size(1), -1}).sum(2).to(query.scalar_type());
  };
  return {at::matmul(to_scores, parts.key).to(query.scalar_type()),
          summed(at::matmul(to_scores.transpose(2, 3), parts.query)),
          summed(at::matmul(parts.weights.transpose(2, 3), grad.to(at::kDouble)))};
}

// Random state that backward must get as forward gave it.
Tensor random_state(std::int64_t value) { return at::full({}, value, at::kLong); }

void check_random_state(const Tensor& seed, const Tensor& offset) {
  TORCH_CHECK(seed.item<std::int64_t>() == 11 && offset.item<std::int64_t>() == 12);
}

using FlashResults = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

FlashResults flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool is_causal,
                   bool /*debug*/, std::optional<double> /*scale*/) {
  TORCH_CHECK(query.scalar_type() != at::kFloat, "flash has no fp32 kernel");
  const auto [output, kept] = attend(query, key, value, dropout, is_causal);
  return {output, kept, {}, {}, query.size(2), key.size(2), random_state(11), random_state(12), at::Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                  const Tensor& value, const Tensor& output, const Tensor& kept,
                                                  const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
                                                  c10::SymInt max_q, c10::SymInt max_k, double /*dropout*/,
                                                  bool is_causal, const Tensor& seed, const Tensor& offset,
                                                  std::optional<double> /*scale*/) {
  TORCH_CHECK(max_q == query.size(2) && max_k == key.size(2) && is_causal);
  check_random_state(seed, offset);
  return attend_backward(grad, query, key, value, output, kept);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& query, const Tensor& key, const Tensor& value,
                                                     const std::optional<Tensor>& /*bias*/, bool compute_log_sumexp,
                                                     double dropout, bool is_causal, std::optional<double> /*scale*/) {
  TORCH_CHECK(compute_log_sumexp && query.size(1) == key.size(1), "efficient takes no shared keys");
  const auto [output, kept] = attend(query, key, value, dropout, is_causal);
  return {output, kept, random_state(11), random_state(12)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& /*bias*/,
    const Tensor& output, const Tensor& kept, const Tensor& seed, const Tensor& offset, double /*dropout*/,
    std::array<bool, 4> wanted, bool is_causal, std::optional<double> /*scale*/) {
  TORCH_CHECK(is_causal && wanted[0] && wanted[1] && wanted[2] && !wanted[3] && query.size(1) == key.size(1));
  check_random_state(seed, offset);
  const auto [grad_query, grad_key, grad_value] = attend_backward(grad, query, key, value, output, kept);
  return {grad_query, grad_key, grad_value, at::Tensor()};
}

Tensor mm_dtype(const Tensor& left, const Tensor& right, at::ScalarType out_dtype) {
  return at::mm(left.to(out_dtype), right.to(out_dtype));
}

Tensor& addmm_dtype_out(const Tensor& self, const Tensor& left, const Tensor& right, at::ScalarType out_dtype,
                        const at::Scalar& beta, const at::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(out.is_same(self) && out.scalar_type() == out_dtype);
  return out.addmm_(left.to(out_dtype), right.to(out_dtype), beta, alpha);
}

std::tuple<Tensor, Tensor> fused_norm(const Tensor& x, at::IntArrayRef shape, const std::optional<Tensor>& weight,
                                      std::optional<double> eps) {
  TORCH_CHECK(shape == weight->sizes());
  const Tensor wide = x.to(at::kDouble);
  const Tensor inverse_root = at::rsqrt(wide.square().mean(-1, true) + *eps);
  return {(wide * inverse_root * *weight).to(x.scalar_type()), inverse_root.to(at::kFloat)};
}

std::tuple<Tensor, Tensor> fused_norm_backward(const Tensor& grad, const Tensor& x, at::IntArrayRef /*shape*/,
                                               const Tensor& inverse_root, const std::optional<Tensor>& weight,
                                               std::array<bool, 2> wanted) {
  const Tensor wide = x.to(at::kDouble);
  const Tensor root = inverse_root.to(at::kDouble);
  const Tensor product = grad.to(at::kDouble) * *weight;
  const Tensor grad_x = root * product - wide * root.pow(3) * (wide * product).mean(-1, true);
  const Tensor grad_weight = (grad.to(at::kDouble) * wide * root).flatten(0, -2).sum(0);
  return {grad_x.to(x.scalar_type()), wanted[1] ? grad_weight.to(weight->scalar_type()) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_scaled_dot_product_flash_attention", flash);
  m.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  m.impl("_scaled_dot_product_efficient_attention", efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
  m.impl("_fused_rms_norm", fused_norm);
  m.impl("_fused_rms_norm_backward", fused_norm_backward);
  m.impl("mm.dtype", mm_dtype);
  m.impl("addmm.dtype_out", addmm_dtype_out);
}

constexpr ops::Kernels kCuda{ops::AttentionKernel::flash_cuda, /*products_in_fp32=*/false, /*fused_norm=*/true};

// In fp32 nothing differs from the CPU but the attention operator.
TEST(CudaKernels, EfficientAttentionInFp32WithAndWithoutSharedKeys) {
  for (const std::int64_t kv_heads : {4, 2, 1}) {
    SCOPED_TRACE(kv_heads);
    expect_equal(
        [](const Tensors& t) {
          return Tensors{ops::causal_attention(ops::AttentionKernel::efficient_cuda, t[0], t[1], t[2])};
        },
        [](const Tensors& t) { return Tensors{reference_attention(t[0], t[1], t[2])}; },
        {normal({2, 33, 4, 16}, 1), normal({2, 33, kv_heads, 16}, 2), normal({2, 33, kv_heads, 16}, 3)});
  }
}

TEST(CudaKernels, FusedNormInFp32WithOneAndWithBothResultsUsed) {
  for (const bool both : {false, true}) {
    const auto used = [&](const at::Tensor& normed, const at::Tensor& x) {
      return both ? Tensors{normed, x} : Tensors{normed};
    };
    expect_equal(
        [&](const Tensors& t) {
          const auto result = ops::rms_norm(t[0], t[1], 1e-5, kCuda);
          return used(result.normed, result.residual);
        },
        [&](const Tensors& t) { return used(reference_norm(t[0], t[1], 1e-5)[0], t[0]); },
        {normal({2, 9, 48}, 1), normal({48}, 2)});
  }
}

// In bf16 and fp16, with gradients in fp32 and in the same dtype.
class CudaKernels : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  static double unit() { return std::get<0>(GetParam()) == at::kBFloat16 ? 0x1p-8 : 0x1p-11; }

  // Every result and gradient rounded `num_roundings` times, but for weights' gradients that are fp32.
  static Precision precision(std::size_t num_activations, double num_roundings) {
    const auto [dtype, fp32_gradients] = GetParam();
    Precision result{dtype, fp32_gradients ? at::kFloat : dtype, num_activations};
    result.results = unit();
    result.activation_gradients = (num_roundings + 1) * unit();
    result.weight_gradients = fp32_gradients ? kTolerance : 2 * unit();
    result.handed_weight_gradients = unit();
    return result;
  }
};

TEST_P(CudaKernels, Attention) {
  for (const auto kernel : {ops::AttentionKernel::flash_cuda, ops::AttentionKernel::efficient_cuda}) {
    for (const std::int64_t kv_heads : {4, 2}) {
      expect_equal([&](const Tensors& t) { return Tensors{ops::causal_attention(kernel, t[0], t[1], t[2])}; },
                   [](const Tensors& t) { return Tensors{reference_attention(t[0], t[1], t[2])}; },
                   {normal({2, 33, 4, 16}, 1), normal({2, 33, kv_heads, 16}, 2), normal({2, 33, kv_heads, 16}, 3)}, 0,
                   precision(3, 2));
    }
  }
}

// The weight's gradient is rounded before it is added.
TEST_P(CudaKernels, FusedNorm) {
  Precision wanted = precision(1, 2);
  wanted.weight_gradients = 2 * unit();
  expect_equal(
      [](const Tensors& t) {
        const auto result = ops::rms_norm(t[0], t[1], 1e-5, kCuda);
        return Tensors{result.normed, result.residual};
      },
      [](const Tensors& t) { return reference_norm(t[0], t[1], 1e-5); }, {normal({2, 9, 48}, 1), normal({48}, 2)}, 0,
      wanted);
}

// The gradient of x is a sum of three products, each rounded.
TEST_P(CudaKernels, Linears) {
  expect_equal(
      [](const Tensors& t) {
        return ops::linears(t[0], {t[1], t[2], t[3]}, kCuda);
      },
      [](const Tensors& t) {
        return Tensors{at::matmul(t[0], t[1].t()), at::matmul(t[0], t[2].t()), at::matmul(t[0], t[3].t())};
      },
      {normal({3, 5, 24}, 1), normal({40, 24}, 2), normal({16, 24}, 3), normal({17, 24}, 4)}, 0, precision(1, 3));
}

// Logits and so the loss are fp32; the gradient of the logits is rounded before it is multiplied.
TEST_P(CudaKernels, LinearCrossEntropy) {
  for (const std::int64_t chunk : {7, 1024}) {
    Precision wanted = precision(1, 2);
    wanted.results = kTolerance;
    wanted.weight_gradients = wanted.handed_weight_gradients = 2 * unit();
    expect_equal(
        [&](const Tensors& t) { return Tensors{ops::linear_cross_entropy(t[0], t[1], t[2], t[3], chunk, 1, kCuda)}; },
        reference_cross_entropy,
        {normal({37, 24}, 1), normal({53, 24}, 2), integers(53, {37}, 3), normal({37}, 4).abs_() / 20}, 1, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaKernels,
                         ::testing::Combine(::testing::Values(at::kBFloat16, at::kHalf), ::testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(std::get<0>(parameters.param) == at::kHalf ? "fp16" : "bf16") +
                                  (std::get<1>(parameters.param) ? "_fp32_gradients" : "_own_gradients");
                         });

}  // namespace
}  // namespace assay
