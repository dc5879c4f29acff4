#include "harness/memory/tracking_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace assay {
namespace {

class TrackingAllocator : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  TrackingAllocator() { install_tracking_allocators(); }
  static at::Tensor bytes(std::int64_t size) { return at::empty({size}, at::device(GetParam()).dtype(at::kByte)); }
};

TEST_P(TrackingAllocator, CountsWhatATensorHolds) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  {
    const at::Tensor tensor = at::empty({100, 3}, at::device(GetParam()).dtype(at::kFloat));
    EXPECT_EQ(ledger->allocated_bytes(), 1536);  // 1200, rounded up
    const at::Tensor view = tensor.t();
    EXPECT_EQ(ledger->num_events(), 1);
    const at::Tensor nothing = bytes(0);
    EXPECT_EQ(ledger->num_events(), 1);
  }
  EXPECT_EQ(ledger->allocated_bytes(), 0);
  EXPECT_EQ(ledger->peak_bytes(), 1536);
}

TEST_P(TrackingAllocator, CountsUnderTheScopeOfTheAllocation) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  at::Tensor moments;
  {
    const MemoryScope optimizer(MemoryCategory::optimizer);
    moments = bytes(700);
  }
  const at::Tensor scratch = bytes(100);
  EXPECT_EQ(ledger->by_category(), (MemoryLedger::Bytes{0, 0, 1024, 0, 0, 512}));
}

TEST_P(TrackingAllocator, UntrackedAndOtherThreadsAreNotCounted) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  at::Tensor staging;
  {
    const UntrackedScope untracked;
    const UntrackedScope nested;
    staging = bytes(4096);
  }
  at::Tensor foreign;
  std::thread([&] { foreign = bytes(4096); }).join();
  EXPECT_EQ(ledger->num_events(), 0);
  staging.reset();
  foreign.reset();
  EXPECT_EQ(ledger->num_events(), 0);
  const at::Tensor counted = bytes(1);
  EXPECT_EQ(ledger->num_events(), 1);
}

TEST_P(TrackingAllocator, ABlockGoesBackToTheLedgerItCameFrom) {
  const auto outer = std::make_shared<MemoryLedger>();
  const auto inner = std::make_shared<MemoryLedger>();
  const LedgerScope outer_scope(outer);
  const at::Tensor first = bytes(100);
  at::Tensor second;
  at::Tensor third;
  {
    const LedgerScope inner_scope(inner);
    second = bytes(2000);
    third = bytes(600);
  }
  const at::Tensor fourth = bytes(100);
  EXPECT_EQ(outer->allocated_bytes(), 1024);
  EXPECT_EQ(inner->allocated_bytes(), 3072);
  second.reset();
  EXPECT_EQ(outer->allocated_bytes(), 1024);
  EXPECT_EQ(inner->allocated_bytes(), 1024);
  std::thread([&] { third.reset(); }).join();  // from another thread
  EXPECT_EQ(inner->allocated_bytes(), 0);
}

TEST_P(TrackingAllocator, BlocksKeepTheirLedgerAlive) {
  at::Tensor survivor;
  std::weak_ptr<MemoryLedger> watch;
  {
    auto ledger = std::make_shared<MemoryLedger>();
    watch = ledger;
    const LedgerScope scope(std::move(ledger));
    survivor = bytes(5000);
  }
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(watch.lock()->allocated_bytes(), 5120);
  survivor.reset();
  EXPECT_TRUE(watch.expired());
}

// By type, with the numbers, and without any change: the process goes on.
TEST_P(TrackingAllocator, PastTheCapacityIsAnOutOfMemoryErrorAndNothingElse) {
  AllocatorSettings settings;
  settings.capacity_bytes = 2 << 20;  // one segment
  const auto ledger = std::make_shared<MemoryLedger>(settings);
  const LedgerScope scope(ledger);
  ledger->set_phase(Phase::backward);
  const at::Tensor half = bytes(1 << 20);
  for (int round = 0; round < 3; ++round) {
    try {
      bytes((1 << 20) + 1);
      ADD_FAILURE() << "must not fit";
    } catch (const c10::OutOfMemoryError& error) {
      const std::string message = error.what_without_backtrace();
      for (const char* part :
           {"asked for 1.00 MiB", "reserved 2.00 MiB of 2.00 MiB", "largest free block 1.00 MiB", "backward"}) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
      }
    }
    EXPECT_EQ(ledger->allocated_bytes(), 1 << 20);
    EXPECT_EQ(ledger->peak_bytes(), round == 0 ? 1 << 20 : 2 << 20);
    const at::Tensor rest = bytes(1 << 20);  // exactly full
    EXPECT_EQ(ledger->allocated_bytes(), 2 << 20);
  }
}

TEST_P(TrackingAllocator, TenThousandRandomAllocationsBalance) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  std::uint32_t state = 7;
  const auto random = [&state](std::uint32_t bound) {
    state = state * 1664525U + 1013904223U;
    return (state >> 8U) % bound;
  };
  std::vector<at::Tensor> alive;
  std::int64_t expected = 0;
  const auto rounded = [](const at::Tensor& tensor) {
    return (static_cast<std::int64_t>(tensor.nbytes()) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  };
  for (int i = 0; i < 10000; ++i) {
    if (random(5) < 3 || alive.empty()) {
      alive.push_back(bytes(1 + random(i % 100 == 0 ? 1 << 20 : 3000)));
      expected += rounded(alive.back());
    } else {
      std::swap(alive[random(static_cast<std::uint32_t>(alive.size()))], alive.back());
      expected -= rounded(alive.back());
      alive.pop_back();
    }
    ASSERT_EQ(ledger->allocated_bytes(), expected);
  }
  EXPECT_GT(expected, 1 << 20);
  alive.clear();
  EXPECT_EQ(ledger->allocated_bytes(), 0);
  EXPECT_EQ(ledger->by_category(), MemoryLedger::Bytes{});
}

INSTANTIATE_TEST_SUITE_P(Devices, TrackingAllocator, ::testing::Values(c10::kCPU, c10::kMeta));

// Kernels load vectors from where a block begins.
TEST(TrackingCpuAllocator, DataIsAlignedAndWhole) {
  install_tracking_allocators();
  const LedgerScope scope(std::make_shared<MemoryLedger>());
  for (const std::int64_t size : {1, 63, 64, 65, 4097}) {
    const at::Tensor tensor = at::full({size}, 7, at::kByte);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64, 0U);
    EXPECT_EQ(tensor.sum().item<std::int64_t>(), 7 * size);
  }
}

// On Meta LibTorch itself resizes without asking the allocator: nothing that is dry-run may resize.
TEST(TrackingCpuAllocator, ResizedStoragesAreCounted) {
  install_tracking_allocators();
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  at::Tensor tensor = at::empty({100}, at::kByte);
  tensor.resize_({10000});
  EXPECT_EQ(ledger->allocated_bytes(), 10240);
  tensor.reset();
  EXPECT_EQ(ledger->allocated_bytes(), 0);
}

// Ranks may be threads of one process: each counts in its own ledger.
TEST(TrackingCpuAllocator, ThreadsCountInTheirOwnLedgers) {
  install_tracking_allocators();
  std::vector<std::int64_t> peaks(4);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto ledger = std::make_shared<MemoryLedger>();
      const LedgerScope scope(ledger);
      for (int i = 0; i < 1000; ++i) at::empty({static_cast<std::int64_t>(rank + 1) * 512}, at::kByte);
      peaks[rank] = ledger->allocated_bytes() == 0 && ledger->num_events() == 2000 ? ledger->peak_bytes() : -1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(peaks, (std::vector<std::int64_t>{512, 1024, 1536, 2048}));
}

}  // namespace
}  // namespace assay
