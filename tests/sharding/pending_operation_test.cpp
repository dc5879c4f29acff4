// Operations that are started and waited for later.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "harness/memory/ledger.h"
#include "harness/memory/tracking_allocator.h"
#include "tests/support/processes.h"
#include "tests/support/socket_bytes.h"
#include "tests/support/test_communicator.h"

namespace assay {
namespace {

constexpr double kTimeout = 20;  // seconds; no test comes near it

void run_gloo(int world_size, const std::function<void(int, Communicator&)>& body) {
  const auto socket = listen_on("127.0.0.1", 0);
  run_ranks(world_size, [&](int rank) {
    const SystemClock clock;
    body(rank, *join(socket, rank, world_size, kTimeout, clock));
  });
}

at::Tensor of_rank(int rank, std::int64_t count, double plus = 0) { return at::full({count}, 10.0 * rank + plus); }

TEST(PendingOperation, StartingDoesNotWaitForTheOthers) {
  std::atomic<bool> started = false;
  run_gloo(2, [&](int rank, Communicator& communicator) {
    // If starting waited, rank 0 would never say that it has started.
    EXPECT_TRUE(rank == 0 || wait_until([&] { return started.load(); }, kTimeout / 2));
    const at::Tensor output = at::zeros({32});
    auto pending = communicator.start_all_gather(output, of_rank(rank, 16));
    if (rank == 0) started = true;
    pending.wait();
    EXPECT_TRUE(at::equal(output, at::cat({of_rank(0, 16), of_rank(1, 16)})));
  });
}

TEST(PendingOperation, ManyRunInTheOrderStartedWhateverIsWaitedForFirst) {
  constexpr int kCount = 20;
  run_gloo(3, [](int rank, Communicator& communicator) {
    std::vector<at::Tensor> gathered;
    std::vector<at::Tensor> exchanged;
    std::vector<PendingOperation> pending;
    for (int i = 0; i < kCount; ++i) {
      gathered.push_back(at::zeros({3 * 1000}));
      exchanged.push_back(at::zeros({3 * 16}));
      pending.push_back(communicator.start_all_gather(gathered.back(), of_rank(rank, 1000, i)));
      pending.push_back(communicator.start_all_to_all(exchanged.back(), of_rank(rank, 3 * 16, -i)));
    }
    communicator.barrier();  // after all of them
    while (!pending.empty()) {
      pending.back().wait();
      pending.pop_back();
    }
    for (int i = 0; i < kCount; ++i) {
      for (int other = 0; other < 3; ++other) {
        EXPECT_TRUE(at::equal(gathered[i].narrow(0, other * 1000, 1000), of_rank(other, 1000, i)));
        EXPECT_TRUE(at::equal(exchanged[i].narrow(0, other * 16, 16), of_rank(other, 16, -i)));
      }
    }
    EXPECT_EQ(communicator.totals().num_operations, 2 * kCount + 1);
  });
}

TEST(PendingOperation, WithNothingToWaitForItReturnsAtOnce) {
  PendingOperation nothing;
  nothing.wait();
  run_gloo(2, [](int rank, Communicator& communicator) {
    const at::Tensor first = at::zeros({32});
    const at::Tensor second = at::zeros({32});
    auto pending = communicator.start_all_gather(first, of_rank(rank, 16));
    pending = communicator.start_all_gather(second, of_rank(rank, 16, 1));  // waits for the first
    EXPECT_TRUE(at::equal(first, at::cat({of_rank(0, 16), of_rank(1, 16)})));
    PendingOperation moved = std::move(pending);
    pending.wait();
    moved.wait();
    moved.wait();
    EXPECT_TRUE(at::equal(second, at::cat({of_rank(0, 16, 1), of_rank(1, 16, 1)})));
  });
}

std::vector<AllocationEvent> events_of_an_operation(Communicator& communicator, int rank) {
  const auto ledger = std::make_shared<MemoryLedger>();
  ledger->record_events(true);
  const LedgerScope scope(ledger);
  const int world_size = communicator.world_size();
  auto pending = communicator.start_all_to_all(at::zeros({16 * world_size}), of_rank(rank, 16 * world_size));
  auto gather = communicator.start_all_gather(at::zeros({64 * world_size}), of_rank(rank, 64));
  const auto block = [](std::int64_t floats) { return (4 * floats + kBlockBytes - 1) / kBlockBytes * kBlockBytes; };
  const std::int64_t of_exchange = 2 * block(16 * world_size);
  const std::int64_t of_gather = block(64 * world_size) + block(64);
  EXPECT_EQ(ledger->allocated_bytes(), of_exchange + of_gather) << "held by the operations alone";
  pending.wait();
  EXPECT_EQ(ledger->allocated_bytes(), of_gather) << "released by wait";
  const PendingOperation dropped = std::move(gather);
  return ledger->events();
}

// On the communication thread nothing is allocated or released: the ledger sees the same as with the fake one.
TEST(PendingOperation, TensorsAreHeldUntilWaitAndReleasedByThatThread) {
  install_tracking_allocators();
  constexpr int kWorld = 3;
  std::vector<std::vector<AllocationEvent>> real(kWorld);
  run_gloo(kWorld, [&](int rank, Communicator& communicator) {
    for (int repetition = 0; repetition < 5; ++repetition) real[rank] = events_of_an_operation(communicator, rank);
  });
  for (int rank = 0; rank < kWorld; ++rank) {
    const ManualClock clock;
    const auto fake = make_fake_communicator(rank, kWorld, clock);
    const auto expected = events_of_an_operation(*fake, rank);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(real[rank], expected) << "rank " << rank;
  }
}

// What lies behind the caller's own work costs nothing; what it waits for does.
TEST(PendingOperation, SecondsAreThoseTheCallerWaited) {
  constexpr auto kLate = std::chrono::milliseconds(300);
  run_gloo(2, [&](int rank, Communicator& communicator) {
    const at::Tensor output = at::zeros({32});
    const auto waited = [&](std::chrono::milliseconds own_work) {
      communicator.barrier();
      const double before = communicator.totals().seconds;
      if (rank == 1) std::this_thread::sleep_for(kLate);
      auto pending = communicator.start_all_gather(output, of_rank(rank, 16));
      if (rank == 0) std::this_thread::sleep_for(own_work);
      pending.wait();
      return communicator.totals().seconds - before;
    };
    const double exposed = waited(std::chrono::milliseconds(0));
    const double hidden = waited(2 * kLate);
    if (rank == 1) return;
    EXPECT_GT(exposed, 0.2);
    EXPECT_LT(hidden, 0.2);
  });
}

// The closed form is of payload; what really goes through the sockets is that and little more.
TEST(PendingOperation, BytesOnTheSocketsMeetTheClosedForm) {
  for (const int world_size : {2, 4}) {
    constexpr std::int64_t kBytes = std::int64_t{8} << 20;
    const auto sent_by = [&](std::int64_t expected, const std::function<void(int, Communicator&)>& operation) {
      std::int64_t before = 0;
      std::int64_t sent = 0;
      run_gloo(world_size, [&](int rank, Communicator& communicator) {
        communicator.barrier();
        if (rank == 0) before = socket_bytes_sent();
        communicator.barrier();
        operation(rank, communicator);
        communicator.barrier();
        const auto arrived = [&] { return (sent = socket_bytes_sent() - before) >= expected; };
        EXPECT_TRUE(rank != 0 || wait_until(arrived, 2)) << sent;  // acknowledged a moment later
        communicator.barrier();
        EXPECT_EQ(communicator.totals().bytes_sent, expected / world_size);
      });
      EXPECT_LT(static_cast<double>(sent), 1.03 * static_cast<double>(expected)) << world_size << " ranks";
    };
    const std::int64_t n = world_size;
    sent_by(n * (n - 1) * kBytes, [&](int, Communicator& communicator) {
      communicator.all_gather(at::zeros({n * kBytes / 4}), at::zeros({kBytes / 4}));
    });
    sent_by(n * (n - 1) * (kBytes / n), [&](int, Communicator& communicator) {
      communicator.all_to_all(at::zeros({kBytes / 4}), at::zeros({kBytes / 4}));
    });
  }
}

}  // namespace
}  // namespace assay
