#include "sharding/communicator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "harness/launch/rendezvous.h"
#include "harness/memory/ledger.h"
#include "harness/memory/tracking_allocator.h"
#include "tests/support/test_communicator.h"

namespace assay {
namespace {

constexpr std::int64_t kPart = 16 * 5;  // elements of one rank's part

// Values of every magnitude and sign, different on every rank and reproducible.
std::vector<float> values_of(int rank, std::int64_t count) {
  std::vector<float> values;
  std::uint32_t state = 12345U + static_cast<std::uint32_t>(rank) * 7919U;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const float magnitude =
        std::ldexp(1.0F + static_cast<float>(state >> 9U) * 0x1p-23F, static_cast<int>(state % 21U) - 10);
    values.push_back((state & 256U) != 0 ? -magnitude : magnitude);
  }
  return values;
}

at::Tensor tensor_of(const std::vector<float>& values) {
  return at::from_blob(const_cast<float*>(values.data()), {static_cast<std::int64_t>(values.size())}, at::kFloat)
      .clone();
}

std::vector<float> floats_of(const at::Tensor& tensor) {
  const float* data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

// The sum of all ranks' values, in the order of the ranks or the reverse one.
std::vector<float> sum_in_order(int world_size, std::int64_t count, bool reversed = false) {
  const auto rank_at = [&](int i) { return reversed ? world_size - 1 - i : i; };
  std::vector<float> sum = values_of(rank_at(0), count);
  for (int i = 1; i < world_size; ++i) {
    const auto values = values_of(rank_at(i), count);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += values[j];
  }
  return sum;
}

class GlooWorld : public ::testing::TestWithParam<int> {
 protected:
  static void run(const std::function<void(int, Communicator&)>& body) {
    const auto socket = listen_on("127.0.0.1", 0);
    run_ranks(GetParam(), [&](int rank) {
      const SystemClock clock;
      const auto communicator = join(socket, rank, GetParam(), /*timeout_seconds=*/30, clock);
      EXPECT_EQ(communicator->rank(), rank);
      EXPECT_EQ(communicator->world_size(), GetParam());
      body(rank, *communicator);
    });
  }
};

TEST_P(GlooWorld, AllGatherPutsThePartsInRankOrder) {
  run([](int rank, Communicator& communicator) {
    const int world = communicator.world_size();
    for (const bool in_place : {false, true}) {
      const at::Tensor output = at::zeros({kPart * world});
      const at::Tensor own = output.narrow(0, rank * kPart, kPart);
      const at::Tensor input = in_place ? own : at::empty({kPart});
      input.copy_(tensor_of(values_of(rank, kPart)));
      communicator.all_gather(output, input);
      for (int other = 0; other < world; ++other) {
        EXPECT_EQ(floats_of(output.narrow(0, other * kPart, kPart)), values_of(other, kPart)) << "from rank " << other;
      }
    }
    // Odd sizes and other types, as the step's summary and the checkpoints use them.
    const at::Tensor all = at::zeros({3 * world}, at::kDouble);
    communicator.all_gather(all, at::full({3}, rank + 0.5, at::kDouble));
    const at::Tensor text = at::zeros({7 * world}, at::kByte);
    communicator.all_gather(text, at::full({7}, rank + 1, at::kByte));
    for (int other = 0; other < world; ++other) {
      EXPECT_EQ(all[other * 3 + 2].item<double>(), other + 0.5);
      EXPECT_EQ(text[other * 7 + 6].item<int>(), other + 1);
    }
  });
}

TEST_P(GlooWorld, AllToAllSendsPartRToRankR) {
  run([](int rank, Communicator& communicator) {
    const int world = communicator.world_size();
    const at::Tensor output = at::zeros({kPart * world});
    communicator.all_to_all(output, tensor_of(values_of(rank, kPart * world)));
    for (int other = 0; other < world; ++other) {
      const auto sent = values_of(other, kPart * world);
      const std::vector<float> expected(sent.begin() + rank * kPart, sent.begin() + (rank + 1) * kPart);
      EXPECT_EQ(floats_of(output.narrow(0, other * kPart, kPart)), expected) << "from rank " << other;
    }
  });
}

TEST_P(GlooWorld, BroadcastComesFromTheRoot) {
  run([](int rank, Communicator& communicator) {
    for (int root = 0; root < communicator.world_size(); ++root) {
      const at::Tensor tensor = tensor_of(values_of(rank, kPart));
      communicator.broadcast(tensor, root);
      EXPECT_EQ(floats_of(tensor), values_of(root, kPart)) << "root " << root;
    }
  });
}

// Bit for bit the fp32 sum in rank order, on all ranks; the other order has other bits, so the order is what is tested.
TEST_P(GlooWorld, AllReduceIsTheSumInRankOrderBitForBit) {
  const int world = GetParam();
  for (const std::int64_t count : {16 * world, 16 * world * 3, 16 * world * 4097}) {
    const auto expected = sum_in_order(world, count);
    if (world > 2 && count > 1000) {
      EXPECT_NE(expected, sum_in_order(world, count, true));
    }
    run([&](int rank, Communicator& communicator) {
      for (int repetition = 0; repetition < 3; ++repetition) {
        const at::Tensor tensor = tensor_of(values_of(rank, count));
        communicator.all_reduce(tensor);
        EXPECT_EQ(floats_of(tensor), expected) << "rank " << rank << ", " << count << " elements";
      }
    });
  }
}

TEST_P(GlooWorld, ReduceScatterChangesTheOwnPartAlone) {
  const int world = GetParam();
  const auto sum = sum_in_order(world, kPart * world);
  run([&](int rank, Communicator& communicator) {
    auto expected = values_of(rank, kPart * world);
    std::copy(sum.begin() + rank * kPart, sum.begin() + (rank + 1) * kPart, expected.begin() + rank * kPart);
    const at::Tensor tensor = tensor_of(values_of(rank, kPart * world));
    communicator.reduce_scatter_in_place(tensor);
    EXPECT_EQ(floats_of(tensor), expected);
  });
}

// A ring or not, no all-reduce can send less than 2 (n - 1) / n of the bytes from each rank.
TEST_P(GlooWorld, BytesSentFollowTheClosedForms) {
  run([](int rank, Communicator& communicator) {
    const std::int64_t n = communicator.world_size();
    const std::int64_t bytes = 4 * kPart * n;
    const at::Tensor whole = at::zeros({kPart * n});
    std::int64_t expected = 0;
    const auto expect_sent = [&](std::int64_t sent, const char* operation) {
      expected += sent;
      EXPECT_EQ(communicator.totals().bytes_sent, expected) << operation;
    };
    communicator.all_reduce(whole);
    expect_sent(2 * (n - 1) * bytes / n, "all_reduce");
    communicator.reduce_scatter_in_place(whole);
    expect_sent((n - 1) * bytes / n, "reduce_scatter");
    communicator.all_gather(whole, whole.narrow(0, rank * kPart, kPart));
    expect_sent((n - 1) * bytes / n, "all_gather");
    communicator.broadcast(whole, 0);
    expect_sent(rank == 0 ? (n - 1) * bytes : 0, "broadcast");
    communicator.barrier();
    expect_sent(0, "barrier");
    EXPECT_GT(communicator.totals().seconds, 0);
  });
}

TEST_P(GlooWorld, ABarrierWaitsForTheLast) {
  std::atomic<int> arrived = 0;
  run([&](int rank, Communicator& communicator) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++arrived;
    communicator.barrier();
    EXPECT_EQ(arrived.load(), communicator.world_size());
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, GlooWorld, ::testing::Values(2, 3, 4));

TEST(FakeCommunicator, AloneEveryOperationIsExact) {
  const ManualClock clock;
  const auto communicator = make_fake_communicator(0, 1, clock);
  const auto values = values_of(0, kPart);
  const at::Tensor tensor = tensor_of(values);
  communicator->all_reduce(tensor);
  communicator->broadcast(tensor, 0);
  communicator->barrier();
  const at::Tensor output = at::zeros({kPart});
  communicator->all_gather(output, tensor);
  EXPECT_EQ(floats_of(output), values);
  EXPECT_EQ(communicator->totals().bytes_sent, 0);
  EXPECT_EQ(communicator->totals().seconds, 0);
}

// Of any world, with values or without: the bytes of the closed form, and the allocations of a real one.
TEST(FakeCommunicator, CountsTheBytesOfAWorldOfAnySize) {
  install_tracking_allocators();
  const ManualClock clock;
  for (const auto device : {at::kCPU, at::kMeta}) {
    const auto ledger = std::make_shared<MemoryLedger>();
    const LedgerScope scope(ledger);
    const auto communicator = make_fake_communicator(63, 64, clock);
    const at::Tensor tensor = at::zeros({16 * 64}, at::device(device).dtype(at::kFloat));
    communicator->all_reduce(tensor);
    EXPECT_EQ(communicator->totals().bytes_sent, 2 * 63 * 16 * 4);
    EXPECT_EQ(ledger->peak_by_category()[static_cast<std::size_t>(MemoryCategory::communication)], 16 * 64 * 4);
    EXPECT_EQ(ledger->allocated_bytes(), 16 * 64 * 4);
  }
}

// What stands for a transport that sums in place takes no buffer and sends the same bytes.
TEST(FakeCommunicator, SumsInPlaceWhereItIsAskedTo) {
  install_tracking_allocators();
  const ManualClock clock;
  const auto communicator = make_fake_communicator(1, 3, clock, /*sums_in_place=*/true);
  const at::Tensor tensor = tensor_of({1, 2, 3, 4, 5, 6});
  communicator->reduce_scatter_in_place(tensor);
  EXPECT_EQ(floats_of(tensor), (std::vector<float>{1, 2, 9, 12, 5, 6}));
  EXPECT_EQ(communicator->totals().bytes_sent, 2 * 2 * 4);

  const at::Tensor meta = at::zeros({6}, at::kMeta);
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  EXPECT_FALSE(communicator->reduction_buffer(meta).defined());
  communicator->reduce_scatter_in_place(meta);
  EXPECT_EQ(ledger->num_events(), 0);
}

// A Meta tensor has no values: an all-gather of a thousand ranks is no work there.
TEST(FakeCommunicator, AWorldOfAThousandIsFastOnMeta) {
  const ManualClock clock;
  const auto communicator = make_fake_communicator(1023, 1024, clock);
  const at::Tensor output = at::zeros({16 * 1024}, at::kMeta);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) communicator->all_gather(output, output.narrow(0, 0, 16));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(500)) << "two million copies";
  EXPECT_EQ(communicator->totals().bytes_sent, 2000LL * 1023 * 16 * 4);
}

TEST(FakeCommunicator, EveryRankIsTakenToHoldTheSame) {
  const ManualClock clock;
  const auto communicator = make_fake_communicator(1, 3, clock);
  const at::Tensor output = at::zeros({6});
  communicator->all_gather(output, tensor_of({1, 2}));
  EXPECT_EQ(floats_of(output), (std::vector<float>{1, 2, 1, 2, 1, 2}));
}

}  // namespace
}  // namespace assay
