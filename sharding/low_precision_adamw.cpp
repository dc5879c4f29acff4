#include "sharding/low_precision_adamw.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <bit>
#include <cmath>
#include <type_traits>

namespace assay {
namespace {

using at::Tensor;

constexpr std::int64_t kGrain = 1 << 15;

// A hash of (seed, element) in 32 bits, by two rounds of multiply and shift (the finalizer of MurmurHash3).
std::uint32_t random_bits(std::uint64_t seed, std::uint64_t element) {
  std::uint64_t bits = seed ^ (element * 0x9E3779B97F4A7C15ULL);
  bits = (bits ^ (bits >> 33U)) * 0xFF51AFD7ED558CCDULL;
  bits = (bits ^ (bits >> 33U)) * 0xC4CEB9FE1A85EC53ULL;
  return static_cast<std::uint32_t>(bits >> 32U);
}

template <class T>
T rounded(float value, std::uint32_t random) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    // What is not finite has no neighbours to choose from.
    if (!std::isfinite(value)) return static_cast<T>(value);
    return static_cast<T>(std::bit_cast<float>((bits + (random & 0xFFFFU)) & 0xFFFF0000U));
  }
}

template <class Parameter, class Gradient, class Moment>
void update_range(Parameter* parameter, const Gradient* gradient, Moment* exp_avg, Moment* exp_avg_sq,
                  const AdamWUpdate& u, float divisor, std::int64_t first, std::int64_t begin, std::int64_t end) {
  const auto keep = static_cast<float>(1 - u.learning_rate * u.weight_decay);
  const auto beta1 = static_cast<float>(u.beta1);
  const auto beta2 = static_cast<float>(u.beta2);
  const auto step_size = static_cast<float>(u.learning_rate / (1 - std::pow(u.beta1, static_cast<double>(u.step))));
  const auto root = static_cast<float>(std::sqrt(1 - std::pow(u.beta2, static_cast<double>(u.step))));
  const auto eps = static_cast<float>(u.eps);
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = static_cast<float>(gradient[i]) / divisor;
    const float mean = beta1 * static_cast<float>(exp_avg[i]) + (1 - beta1) * g;
    const float square = beta2 * static_cast<float>(exp_avg_sq[i]) + (1 - beta2) * g * g;
    const float value = static_cast<float>(parameter[i]) * keep - step_size * mean / (std::sqrt(square) / root + eps);
    const auto element = 3 * static_cast<std::uint64_t>(first + i);
    parameter[i] = rounded<Parameter>(value, random_bits(u.seed, element));
    exp_avg[i] = rounded<Moment>(mean, random_bits(u.seed, element + 1));
    exp_avg_sq[i] = rounded<Moment>(square, random_bits(u.seed, element + 2));
  }
}

template <class Visit>
void with_type(const Tensor& tensor, Visit visit) {
  if (tensor.scalar_type() == at::kBFloat16) {
    visit(c10::BFloat16());
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "expected fp32 or bf16, got ", tensor.scalar_type());
    visit(float());
  }
}

void on_cpu(const Tensor& parameter, const Tensor& gradient, const Tensor& exp_avg, const Tensor& exp_avg_sq,
            const AdamWUpdate& update, const Tensor& grad_divisor, std::int64_t first) {
  const float divisor = *grad_divisor.const_data_ptr<float>();
  with_type(parameter, [&](auto p) {
    with_type(gradient, [&](auto g) {
      with_type(exp_avg, [&](auto m) {
        using P = decltype(p);
        using G = decltype(g);
        using M = decltype(m);
        at::parallel_for(0, parameter.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
          update_range(parameter.mutable_data_ptr<P>(), gradient.const_data_ptr<G>(), exp_avg.mutable_data_ptr<M>(),
                       exp_avg_sq.mutable_data_ptr<M>(), update, divisor, first, begin, end);
        });
      });
    });
  });
}

}  // namespace

void low_precision_adamw(const Tensor& parameter, const Tensor& gradient, const Tensor& exp_avg,
                         const Tensor& exp_avg_sq, const AdamWUpdate& update, const Tensor& grad_divisor,
                         std::int64_t first_element) {
  if (parameter.is_meta()) return;  // allocates nothing
  on_cpu(parameter, gradient, exp_avg, exp_avg_sq, update, grad_divisor, first_element);
}

}  // namespace assay
