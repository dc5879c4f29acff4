#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>

#include "harness/core/clock.h"
#include "sharding/gradient_norm.h"
#include "sharding/sharded_adamw.h"
#include "sharding/sharded_units.h"

namespace assay {
namespace {

std::uint32_t next(std::uint32_t& state) {
  state = state * 1664525U + 1013904223U;
  return state >> 8U;
}

double uniform(std::uint32_t& state) { return next(state) * 0x1p-24; }

// Elements whose sizes spread over four orders of magnitude, as gradients do.
at::Tensor mixed_sizes(std::int64_t count) {
  at::Tensor tensor = at::empty({count});
  std::uint32_t state = 42;
  float* data = tensor.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::pow(10.0, 4 * uniform(state) - 3);
    data[i] = static_cast<float>(next(state) % 2 == 0 ? size : -size);
  }
  return tensor;
}

TEST(GradientNorm, IsRightWhereOneFp32SumIsOffByFar) {
  for (const std::int64_t count :
       {std::int64_t{5'000'037}, std::int64_t{1024 * 1024}, std::int64_t{1025}, std::int64_t{7}}) {
    const at::Tensor tensor = mixed_sizes(count);
    double exact = 0;
    float single = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = tensor.const_data_ptr<float>()[i];
      exact += static_cast<double>(value) * static_cast<double>(value);
      single += value * value;
    }
    // A row's norm is rounded to fp32 and squared; over thousands of rows these errors cancel.
    EXPECT_NEAR(sum_of_squares(tensor).item<double>(), exact, (count > 1'000'000 ? 1e-7 : 1e-6) * exact) << count;
    if (count > 5'000'000) {
      EXPECT_GT(std::abs(single - exact), 1e-4 * exact) << "the test must be able to fail";
    }
  }
}

TEST(GradientNorm, ItsBitsDoNotDependOnThreads) {
  const at::Tensor tensor = mixed_sizes(3'000'000);
  at::set_num_threads(1);
  const double one = sum_of_squares(tensor).item<double>();
  at::set_num_threads(2);
  EXPECT_EQ(sum_of_squares(tensor).item<double>(), one);
  at::set_num_threads(1);
}

TEST(GradientNorm, PassesOnWhatIsNotFinite) {
  at::Tensor tensor = at::ones({5000});
  tensor[4999] = INFINITY;
  EXPECT_TRUE(std::isinf(sum_of_squares(tensor).item<double>()));
  tensor[17] = NAN;
  EXPECT_TRUE(std::isnan(sum_of_squares(tensor).item<double>()));
  EXPECT_EQ(sum_of_squares(at::zeros({5000})).item<double>(), 0);
}

// Two units: decayed matrices and plain vectors of odd sizes. Whole on every rank unless the options say otherwise.
struct Units {
  explicit Units(int rank = 0, int world_size = 1, const ShardingOptions& options = {})
      : communicator(make_fake_communicator(rank, world_size, clock)),
        units({{"first",
                {{"norm", {13}, false, &values[0]},
                 {"matrix", {5, 7}, true, &values[1]},
                 {"other", {33, 2}, true, &values[2]}}},
               {"second", {{"bias", {17}, false, &values[3]}}}},
              options, *communicator, *device) {}

  FlatGroup& group(std::size_t unit) { return *units[unit].trained(); }

  ManualClock clock;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Device> device = make_cpu_device(1);
  std::array<at::Tensor, 4> values;
  std::array<bool, 4> decayed{false, true, true, false};
  ShardedUnits units;
};

TEST(FlatGroup, ValuesAndGradientsAreViewsOfTheFlatBuffers) {
  Units all;
  FlatGroup& group = all.group(0);
  for (std::size_t i = 0; i < 3; ++i) {
    at::Tensor& value = all.values[i];
    EXPECT_TRUE(value.is_leaf() && value.requires_grad());
    EXPECT_TRUE(value.is_alias_of(group.master()));
    EXPECT_TRUE(value.grad().is_alias_of(group.gradient()));
    EXPECT_EQ(value.storage_offset(), group.layout().offsets[i]);
    EXPECT_EQ(value.grad().storage_offset(), group.layout().offsets[i]);
    EXPECT_TRUE(value.is_contiguous());
    (value * static_cast<double>(i + 1)).sum().backward();  // autograd's own accumulation stays in the buffer as well
  }
  double expected = 0;
  for (std::size_t i = 0; i < 3; ++i)
    expected += static_cast<double>(i + 1) * static_cast<double>(all.values[i].numel());
  EXPECT_EQ(group.gradient().sum().item<double>(), expected);
  group.zero_gradient();
  EXPECT_EQ(all.values[2].grad().abs().max().item<float>(), 0);
}

TEST(FlatGroup, ShardsTileTheBuffer) {
  std::int64_t next_begin = 0;
  for (int rank = 0; rank < 3; ++rank) {
    Units all(rank, 3);
    const FlatGroup& group = all.group(0);
    const at::Tensor shard = group.shard_of(group.master());
    EXPECT_EQ(shard.storage_offset(), next_begin);
    EXPECT_TRUE(shard.is_alias_of(group.master()));
    next_begin += shard.numel();
    if (rank == 2) {
      EXPECT_EQ(next_begin, group.layout().numel);
    }
  }
}

// AdamW as in the paper, one parameter by itself, in fp64.
struct PlainAdamW {
  std::vector<double> parameter, exp_avg, exp_avg_sq;

  void step(const at::Tensor& gradient, const AdamWOptions& options, double weight_decay, double rate, double divisor,
            int t) {
    const at::Tensor flat = gradient.flatten();
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      const double g = flat.const_data_ptr<float>()[i] / divisor;
      exp_avg[i] = options.beta1 * exp_avg[i] + (1 - options.beta1) * g;
      exp_avg_sq[i] = options.beta2 * exp_avg_sq[i] + (1 - options.beta2) * g * g;
      const double mean = exp_avg[i] / (1 - std::pow(options.beta1, t));
      const double square = exp_avg_sq[i] / (1 - std::pow(options.beta2, t));
      parameter[i] -= rate * weight_decay * parameter[i];
      parameter[i] -= rate * mean / (std::sqrt(square) + options.eps);
    }
  }
};

std::vector<double> doubles_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.detach().flatten().to(at::kDouble);
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// Parameters of about 1 that are rounded to fp32 twice a step: 40 x 6e-8 at worst, a random walk of 4e-7. They move by
// about 20 x 0.01 in all, so a missing bias correction or decay would show at 1e-3 or more.
TEST(ShardedAdamW, EqualsPlainAdamWInDoublePrecision) {
  Units all;
  const AdamWOptions options{0.9, 0.95, 1e-8, 0.1};
  ShardedAdamW optimizer(all.units, options, *all.device);
  std::uint32_t state = 3;
  const auto fill = [&](at::Tensor tensor) {
    const at::NoGradGuard no_grad;
    tensor = tensor.view({-1});
    for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor[i] = 2 * uniform(state) - 1;
  };
  std::vector<PlainAdamW> plain;
  for (auto& value : all.values) {
    fill(value.detach());
    const auto zeros = std::vector<double>(static_cast<std::size_t>(value.numel()), 0.0);
    plain.push_back({doubles_of(value), zeros, zeros});
  }
  for (int t = 1; t <= 20; ++t) {
    const double rate = 0.01 * (t < 5 ? t / 5.0 : 1);
    const double divisor = t % 3 == 0 ? 1 : 1 + 0.25 * t;
    for (std::size_t i = 0; i < all.values.size(); ++i) {
      fill(all.values[i].mutable_grad());
      plain[i].step(all.values[i].grad(), options, all.decayed[i] ? options.weight_decay : 0, rate, divisor, t);
    }
    optimizer.step(rate, at::full({1}, divisor, at::kFloat));
    EXPECT_EQ(optimizer.num_steps(), t);
    for (std::size_t i = 0; i < all.values.size(); ++i) {
      const auto mine = doubles_of(all.values[i]);
      for (std::size_t j = 0; j < mine.size(); ++j)
        ASSERT_NEAR(mine[j], plain[i].parameter[j], 2e-6) << "step " << t << ", " << i;
    }
  }
  const FlatGroup& group = all.group(0);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto moment =
        doubles_of(optimizer.moments(0).exp_avg_sq.narrow(0, group.layout().offsets[i], all.values[i].numel()));
    for (std::size_t j = 0; j < moment.size(); ++j)
      EXPECT_NEAR(moment[j], plain[i].exp_avg_sq[j], 1e-6 * plain[i].exp_avg_sq[j] + 1e-12);
  }
}

// A28: all memory is there before the first step, and the counter is 0: the first update corrects the bias for step 1,
// which makes it rate x gradient / (|gradient| + eps) exactly. For step 2 it would be 0.74 of that.
TEST(ShardedAdamW, TheFirstUpdateIsStepOne) {
  Units all;
  ShardedAdamW optimizer(all.units, {0.9, 0.95, 1e-8, 0.0}, *all.device);
  EXPECT_EQ(optimizer.num_steps(), 0);
  for (std::size_t unit = 0; unit < 2; ++unit) {
    EXPECT_EQ(optimizer.moments(unit).exp_avg.numel(), all.group(unit).layout().numel);
    EXPECT_EQ(optimizer.moments(unit).exp_avg.abs().max().item<float>(), 0);
    EXPECT_EQ(optimizer.moments(unit).exp_avg_sq.abs().max().item<float>(), 0);
  }
  for (auto& value : all.values) value.mutable_grad().fill_(0.25);
  optimizer.step(0.01, at::ones({1}));
  for (const auto& value : all.values) EXPECT_NEAR(value.detach().min().item<double>(), -0.01, 1e-8);
}

TEST(ShardedAdamW, ACounterThatIsSetGoesOnFromThere) {
  Units first;
  Units second;
  ShardedAdamW one(first.units, {}, *first.device);
  ShardedAdamW two(second.units, {}, *second.device);
  const auto step = [](Units& units, ShardedAdamW& optimizer, int t) {
    for (auto& value : units.values) value.mutable_grad().fill_(0.1 * t);
    optimizer.step(0.01, at::ones({1}));
  };
  for (int t = 1; t <= 3; ++t) step(first, one, t);
  for (std::size_t unit = 0; unit < 2; ++unit) {
    second.group(unit).master().copy_(first.group(unit).master());
    two.moments(unit).exp_avg.copy_(one.moments(unit).exp_avg);
    two.moments(unit).exp_avg_sq.copy_(one.moments(unit).exp_avg_sq);
  }
  two.set_num_steps(one.num_steps());
  step(first, one, 4);
  step(second, two, 4);
  for (std::size_t unit = 0; unit < 2; ++unit) {
    EXPECT_TRUE(at::equal(first.group(unit).master(), second.group(unit).master()));
  }
}

// Padding is updated like the rest and must stay zero, or it would enter norms and checkpoints.
TEST(ShardedAdamW, PaddingStaysZero) {
  Units all(0, 3);
  ShardedAdamW optimizer(all.units, {}, *all.device);
  for (auto& value : all.values) value.mutable_grad().fill_(1);
  for (int t = 0; t < 3; ++t) optimizer.step(0.01, at::ones({1}));
  std::int64_t used = 0;
  for (const auto& value : all.values) used += value.numel();
  std::int64_t changed = 0;
  for (std::size_t unit = 0; unit < 2; ++unit) changed += all.group(unit).master().ne(0).sum().item<std::int64_t>();
  EXPECT_EQ(changed, used);
}

}  // namespace
}  // namespace assay
