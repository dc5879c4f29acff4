#include "sharding/sharded_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "harness/launch/rendezvous.h"
#include "harness/train/strategy.h"
#include "sharding/sharded_adamw.h"
#include "tests/support/rank_threads.h"
#include "tests/support/sharded_run.h"
#include "tests/support/unit_ranks.h"

namespace assay {
namespace {

constexpr StrategyName kStrategies[] = {StrategyName::ddp, StrategyName::zero1, StrategyName::zero2,
                                        StrategyName::fsdp};
constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16, Precision::pure_bf16};
constexpr int kShares = 12;  // worlds of 1 to 4 divide it

// Integers below 9: twelve of them add up exactly even in bf16, in whatever order.
at::Tensor share_of_gradient(const PlannedParameter& parameter, std::size_t number, int share) {
  const at::Tensor place = at::arange(c10::multiply_integers(parameter.shape), at::kLong);
  return ((place * 7 + place.div(5, "floor") + 13 * share * share + 5 * static_cast<std::int64_t>(number)) % 17 - 8)
      .to(at::kFloat)
      .view(parameter.shape);
}

at::Tensor whole_gradient(const PlannedParameter& parameter, std::size_t number) {
  at::Tensor sum = share_of_gradient(parameter, number, 0);
  for (int share = 1; share < kShares; ++share) sum = sum + share_of_gradient(parameter, number, share);
  return sum;
}

at::Tensor initial_value(const PlannedParameter& parameter, std::size_t number) {
  const at::Tensor place = at::arange(c10::multiply_integers(parameter.shape), at::kFloat);
  return (place * 0.37 + static_cast<double>(number)).sin().view(parameter.shape);
}

// Builds a communicator of each world size once, ranks as threads.
void on_every_world(const std::vector<int>& world_sizes, const std::function<void(Communicator&, Device&)>& body) {
  for (const int world_size : world_sizes) {
    SCOPED_TRACE(std::to_string(world_size) + " ranks");
    const int port = find_free_port();
    run_ranks(world_size, [&](int rank) {
      const SystemClock clock;
      const auto communicator = make_test_communicator(rank, world_size, port, clock);
      const auto device = make_cpu_device(1);
      body(*communicator, *device);
    });
  }
}

/// Units, optimizer, and one step of it.
struct Training {
  Training(const ShardedCase& c, Communicator& communicator, Device& device)
      : all(mixed_units(), sharding_options(sharded_recipe(c)), communicator, device),
        optimizer(all.units, adamw_options(sharded_recipe(c)), device) {
    all.write([&](std::size_t i) { return initial_value(all.planned(i), i); });
    all.units.begin_step();
  }

  void update() {
    optimizer.step(0.01, at::full({1}, 3.0, at::kFloat));
    all.units.publish();
  }

  RankUnits all;
  ShardedAdamW optimizer;
};

/// What one rank alone has after a step with the whole gradient.
struct Reference {
  std::vector<at::Tensor> masters, exp_avgs, exp_avg_sqs, values;

  explicit Reference(Precision precision) {
    const ManualClock clock;
    const auto communicator = make_fake_communicator(0, 1, clock);
    const auto device = make_cpu_device(1);
    Training one({StrategyName::none, 1, precision}, *communicator, *device);
    one.all.micro_step(true, [&](std::size_t i) { return whole_gradient(one.all.planned(i), i); });
    one.update();
    for (std::size_t i = 0; i < one.all.size(); ++i) {
      const auto keep = [&](const at::Tensor& owned) { return one.all.part_of(owned, i).values.clone(); };
      const bool trained = one.all.planned(i).trainable;
      const auto& moments = one.optimizer.moments(one.all.unit_number(i));
      masters.push_back(trained ? keep(one.all.unit_of(i).trained()->master()) : at::Tensor());
      exp_avgs.push_back(trained ? keep(moments.exp_avg) : at::Tensor());
      exp_avg_sqs.push_back(trained ? keep(moments.exp_avg_sq) : at::Tensor());
    }
    values = one.all.read();
  }
};

void expect_part(const FlatGroup::Part& part, const at::Tensor& whole) {
  EXPECT_TRUE(at::equal(part.values, whole.reshape({-1}).narrow(0, part.first, part.values.numel()))) << part.values;
}

void expect_equal_to(Training& mine, const Reference& reference) {
  for (std::size_t i = 0; i < mine.all.size(); ++i) {
    SCOPED_TRACE(mine.all.planned(i).name);
    const auto& moments = mine.optimizer.moments(mine.all.unit_number(i));
    if (!mine.all.planned(i).trainable) {
      EXPECT_FALSE(mine.all.value(i).grad().defined());
      EXPECT_FALSE(mine.all.value(i).requires_grad());
      EXPECT_EQ(mine.all.unit_of(i).groups().back()->master().scalar_type(), mine.all.value(i).scalar_type());
      EXPECT_EQ(moments.exp_avg.defined(), mine.all.unit_of(i).trained() != nullptr);
      continue;
    }
    expect_part(mine.all.part_of(mine.all.unit_of(i).trained()->master(), i), reference.masters[i]);
    expect_part(mine.all.part_of(moments.exp_avg, i), reference.exp_avgs[i]);
    expect_part(mine.all.part_of(moments.exp_avg_sq, i), reference.exp_avg_sqs[i]);
  }
  const auto values = mine.all.read();
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(at::equal(values[i], reference.values[i])) << mine.all.planned(i).name;
    if (mine.all.planned(i).trainable) continue;
    EXPECT_TRUE(at::equal(values[i], initial_value(mine.all.planned(i), i).to(values[i].scalar_type())));
  }
}

// E09: with 12, 6, 4 and 3 micro-steps, reduced after each of them or once. Frozen parameters, alone and beside trained
// ones, are gathered with the values they were given, and have neither gradient nor moments.
TEST(ShardedUnits, IntegerGradientsGiveTheBitsOfOneRankInEveryWorldAndStrategy) {
  for (const auto precision : kPrecisions) {
    const Reference reference(precision);
    EXPECT_FALSE(
        at::equal(reference.values[0], initial_value(mixed_units()[0][0], 0).to(reference.values[0].scalar_type())));
    on_every_world({1, 2, 3, 4}, [&](Communicator& communicator, Device& device) {
      const int world_size = communicator.world_size();
      for (const auto strategy : kStrategies) {
        const ShardedCase c{strategy, world_size, precision};
        SCOPED_TRACE(::testing::PrintToString(c));
        Training mine(c, communicator, device);
        EXPECT_EQ(mine.all.units[2].trained(), nullptr);
        const int num_micro_steps = kShares / world_size;
        for (int step = 0; step < num_micro_steps; ++step) {
          mine.all.micro_step(step + 1 == num_micro_steps, [&](std::size_t i) {
            return share_of_gradient(mine.all.planned(i), i, step * world_size + communicator.rank());
          });
        }
        for (std::size_t i = 0; i < mine.all.size(); ++i) {
          if (!mine.all.planned(i).trainable) continue;
          const auto part = mine.all.gradient_part(i);
          EXPECT_TRUE(at::equal(
              part.values.to(at::kFloat),
              whole_gradient(mine.all.planned(i), i).reshape({-1}).narrow(0, part.first, part.values.numel())))
              << mine.all.planned(i).name;
        }
        mine.update();
        expect_equal_to(mine, reference);
      }
    });
  }
}

// E08: `matrix` is used in the last micro-step alone, `last` on rank 0 alone, `one` never.
TEST(ShardedUnits, AParameterMayBeUsedLateOnOneRankOrNever) {
  on_every_world({2, 3}, [&](Communicator& communicator, Device& device) {
    for (const auto strategy : kStrategies) {
      const ShardedCase c{strategy, communicator.world_size(), Precision::bf16};
      SCOPED_TRACE(::testing::PrintToString(c));
      Training mine(c, communicator, device);
      const auto used = [&](std::size_t i, int step, int rank) {
        const auto& name = mine.all.planned(i).name;
        return name == "matrix" ? step == 2 : name == "last" ? rank == 0 : name != "one";
      };
      for (int step = 0; step < 3; ++step) {
        mine.all.micro_step(step == 2, [&](std::size_t i) {
          return used(i, step, communicator.rank())
                     ? share_of_gradient(mine.all.planned(i), i, 3 * communicator.rank() + step)
                     : at::Tensor();
        });
      }
      for (std::size_t i = 0; i < mine.all.size(); ++i) {
        if (!mine.all.planned(i).trainable) continue;
        at::Tensor expected = at::zeros(mine.all.planned(i).shape);
        for (int rank = 0; rank < communicator.world_size(); ++rank) {
          for (int step = 0; step < 3; ++step) {
            if (used(i, step, rank)) expected += share_of_gradient(mine.all.planned(i), i, 3 * rank + step);
          }
        }
        SCOPED_TRACE(mine.all.planned(i).name);
        expect_part(mine.all.gradient_part(i), expected);
      }
      mine.update();
    }
  });
}

// E14: four times 3e4 is more than fp16 can hold, and 1e-7 is two of its smallest steps.
TEST(ShardedUnits, SumsOfLargeAndSmallFp16GradientsAreRight) {
  on_every_world({4}, [&](Communicator& communicator, Device& device) {
    for (const auto strategy : kStrategies) {
      for (const auto reduce_dtype : {FloatType::fp32, FloatType::bf16}) {
        ShardedCase c{strategy, 4, Precision::fp16};
        c.reduce_dtype = reduce_dtype;
        SCOPED_TRACE(::testing::PrintToString(c));
        Training mine(c, communicator, device);
        const auto of_rank = [](std::size_t i) { return i % 2 == 0 ? 3e4 : 1e-7; };
        mine.all.micro_step(
            true, [&](std::size_t i) { return at::full(mine.all.planned(i).shape, of_rank(i)).to(at::kHalf); });
        for (std::size_t i = 0; i < mine.all.size(); ++i) {
          if (!mine.all.planned(i).trainable) continue;
          const double given = at::full({1}, of_rank(i)).to(at::kHalf).to(at::kDouble).item<double>();
          const double relative = reduce_dtype == FloatType::fp32 ? 0x1p-23 : 0x1p-7;
          const at::Tensor sums = mine.all.gradient_part(i).values.to(at::kDouble);
          EXPECT_TRUE(at::allclose(sums, at::full_like(sums, 4 * given), relative, 0)) << mine.all.planned(i).name;
        }
      }
    }
  });
}

// E11: from what the ranks hold for good, frozen parameters included, other units become the same.
TEST(ShardedUnits, ShardsOfTrainedAndFrozenParametersRestoreAll) {
  on_every_world({1, 3}, [&](Communicator& communicator, Device& device) {
    for (const auto strategy : kStrategies) {
      for (const auto precision : kPrecisions) {
        const ShardedCase c{strategy, communicator.world_size(), precision};
        SCOPED_TRACE(::testing::PrintToString(c));
        Training saved(c, communicator, device);
        Training loaded(c, communicator, device);
        loaded.all.write([&](std::size_t i) { return at::full(loaded.all.planned(i).shape, NAN); });
        for (std::size_t unit = 0; unit < loaded.all.units.size(); ++unit) {
          const auto& groups = loaded.all.units[unit].groups();
          for (std::size_t i = 0; i < groups.size(); ++i) {
            const FlatGroup& from = *saved.all.units[unit].groups()[i];
            groups[i]->shard_of(groups[i]->master()).copy_(from.shard_of(from.master()));
            groups[i]->gather_owned(groups[i]->master());
          }
        }
        loaded.all.units.publish();
        const auto expected = saved.all.read();
        const auto values = loaded.all.read();
        for (std::size_t i = 0; i < values.size(); ++i) {
          EXPECT_TRUE(at::equal(values[i], expected[i])) << loaded.all.planned(i).name;
        }
      }
    }
  });
}

// Nine equal units: 4096 elements, 8 KiB gathered in bf16; a gradient on its way is 16 KiB and 16 KiB received.
TEST(ShardedUnits, NoMoreUnitsThanAllowedTakeMemoryAtOnce) {
  constexpr std::int64_t kGathered = 4096 * 2;
  constexpr std::int64_t kReduced = 2 * 4096 * 4;
  constexpr int kUnits = 9;
  install_tracking_allocators();
  const ManualClock clock;
  const auto communicator = make_fake_communicator(1, 4, clock);
  const auto device = make_cpu_device(1);
  for (const bool reshard : {true, false}) {
    for (const int in_flight : {1, 2, 3, 20}) {
      SCOPED_TRACE(std::to_string(in_flight) + (reshard ? "" : ", no resharding"));
      ShardedCase c{StrategyName::fsdp, 4, Precision::bf16};
      c.units_in_flight = in_flight;
      c.reshard_after_forward = reshard;
      RankUnits all(std::vector<PlannedUnit>(kUnits, {{"matrix", {64, 64}}}), sharding_options(sharded_recipe(c)),
                    *communicator, *device);
      all.units.begin_step();
      const auto ledger = std::make_shared<MemoryLedger>();
      const LedgerScope scope(ledger);
      for (std::size_t unit = 0; unit < kUnits; ++unit) {
        all.units.before_forward(unit);
        all.units.after_forward(unit);
      }
      const std::int64_t at_once = std::min(in_flight, kUnits);
      EXPECT_EQ(ledger->peak_bytes(), (reshard ? at_once : kUnits) * kGathered);
      EXPECT_EQ(ledger->allocated_bytes(), reshard ? 0 : kUnits * kGathered);
      for (std::size_t unit = kUnits; unit-- > 0;) {
        all.units.before_backward(unit);
        all.units.after_backward(unit);
      }
      all.units.end_micro_step();
      EXPECT_LE(ledger->peak_bytes(), (reshard ? at_once : kUnits) * kGathered + at_once * kReduced);
      EXPECT_EQ(ledger->allocated_bytes(), 0);
    }
  }
}

}  // namespace
}  // namespace assay
