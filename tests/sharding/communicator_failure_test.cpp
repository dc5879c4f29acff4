// Ranks that are silent, lost, or do something else than the others: every rank ends, in time and with a reason.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "harness/core/error.h"
#include "tests/support/processes.h"
#include "tests/support/test_communicator.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kLong = 60;  ///< a time-out that no test waits for

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The message of the Error{communication} that the call throws, within so many seconds.
std::string message_of(const std::function<void()>& call, double longest_seconds = 6) {
  std::string message = "no error";
  EXPECT_LT(seconds_of([&] {
              try {
                call();
                ADD_FAILURE() << "did not fail";
              } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::communication);
                message = error.what();
              }
            }),
            longest_seconds)
      << message;
  EXPECT_THAT(message, ::testing::Not(HasSubstr("\n")));
  return message;
}

void run_gloo(int world_size, double timeout_seconds, const std::function<void(int, Communicator&)>& body) {
  const auto socket = listen_on("127.0.0.1", 0);
  run_ranks(world_size, [&](int rank) {
    const SystemClock clock;
    body(rank, *join(socket, rank, world_size, timeout_seconds, clock));
  });
}

// A rank that lives but does not call is noticed within the time-out; operation and ranks are named.
TEST(GlooFailure, ASilentRankIsATimeOutThatNamesOperationAndRanks) {
  std::atomic<int> num_failed = 0;
  run_gloo(3, /*timeout_seconds=*/1, [&](int rank, Communicator& communicator) {
    const at::Tensor whole = at::zeros({48});
    if (rank == 1) {
      EXPECT_TRUE(wait_until([&] { return num_failed == 2; }, 20));
      return;
    }
    EXPECT_THAT(message_of([&] { communicator.all_gather(whole, at::zeros({16})); }),
                AllOf(StartsWith("all_gather failed on rank " + std::to_string(rank) + " of 3 at rank "),
                      HasSubstr("look at the other ranks")));
    ++num_failed;
  });
}

TEST(GlooFailure, ALostRankIsAnErrorLongBeforeTheTimeOut) {
  run_gloo(2, kLong, [&](int rank, Communicator& communicator) {
    const at::Tensor whole = at::zeros({32});
    communicator.all_reduce(whole);
    if (rank == 1) return;
    EXPECT_THAT(message_of([&] { communicator.all_reduce(whole); }),
                StartsWith("all_to_all failed on rank 0 of 2 at rank 1: "));
  });
}

// Its peers have started operations that can never be done; they end with its connection.
TEST(GlooFailure, ARankWithAnErrorOfItsOwnEndsTheOthersOperations) {
  try {
    run_gloo(3, kLong, [&](int rank, Communicator& communicator) {
      const at::Tensor whole = at::zeros({3 << 20});
      const at::Tensor part = at::zeros({1 << 20});
      auto first = communicator.start_all_gather(whole, part);
      if (rank == 1) throw Error(ErrorKind::numeric, "loss is NaN");
      auto second = communicator.start_all_to_all(whole, at::zeros({3 << 20}));
      auto third = communicator.start_all_gather(whole, part);
      const auto message = message_of([&] { third.wait(); });
      EXPECT_EQ(message_of([&] { second.wait(); }, 1), message) << "the first failure is that of all";
      EXPECT_EQ(message_of([&] { communicator.barrier(); }, 1), message);
      EXPECT_THAT(message, StartsWith("all_to_all failed on rank "));
      first.wait();  // was whole: rank 1 waited for it while it unwound
    });
    ADD_FAILURE() << "the error is lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::numeric);
  }
}

// The memory of operations in flight is safe to release afterwards, and nobody waits for a peer that will not come.
TEST(GlooFailure, DestroyingACommunicatorEndsOperationsInFlightAtOnce) {
  const auto socket = listen_on("127.0.0.1", 0);
  std::atomic<bool> done = false;
  run_ranks(2, [&](int rank) {
    const SystemClock clock;
    auto communicator = join(socket, rank, 2, kLong, clock);
    if (rank == 1) {
      EXPECT_TRUE(wait_until([&] { return done.load(); }, 20));
      return;
    }
    const at::Tensor output = at::zeros({1 << 20});
    std::optional<PendingOperation> first = communicator->start_all_gather(output, at::zeros({1 << 19}));
    std::optional<PendingOperation> second = communicator->start_all_to_all(output, at::zeros({1 << 20}));
    EXPECT_LT(seconds_of([&] { communicator.reset(); }), 5);
    EXPECT_LT(seconds_of([&] { first.reset(), second.reset(); }), 1);
    done = true;
  });
}

TEST(GlooFailure, ARankThatNeverJoinsIsATimeOutThatNamesTheAddress) {
  const auto socket = listen_on("127.0.0.1", 0);
  const SystemClock clock;
  EXPECT_THAT(message_of([&] { join(socket, 0, 2, /*timeout_seconds=*/1, clock); }),
              AllOf(HasSubstr("rank 0 of 2"), HasSubstr("127.0.0.1:" + std::to_string(socket.port))));
}

/// One rank calls something else than the others, as the second operation of all.
struct Difference {
  const char* name;
  int odd_rank;
  int world_size;
  std::function<void(Communicator&, const at::Tensor&)> usual;
  std::function<void(Communicator&, const at::Tensor&)> odd;
  const char* message;
};

void PrintTo(const Difference& difference, std::ostream* stream) { *stream << difference.name; }

void gather(Communicator& communicator, const at::Tensor& output) {
  const std::int64_t part = output.numel() / communicator.world_size();
  communicator.all_gather(output, at::ones({part}, output.options()));
}
void exchange(Communicator& communicator, const at::Tensor& output) {
  communicator.all_to_all(output, at::ones_like(output));
}
void gather_less(Communicator& communicator, const at::Tensor& output) {
  gather(communicator, output.narrow(0, 0, output.numel() / 2));
}
void gather_doubles(Communicator& communicator, const at::Tensor& output) {
  gather(communicator, output.to(at::kDouble));
}
void from_rank_0(Communicator& communicator, const at::Tensor& output) { communicator.broadcast(output, 0); }
void from_rank_1(Communicator& communicator, const at::Tensor& output) { communicator.broadcast(output, 1); }
void meet(Communicator& communicator, const at::Tensor& /*output*/) { communicator.barrier(); }

class OtherProgram : public ::testing::TestWithParam<Difference> {};

TEST_P(OtherProgram, IsNamedOnEveryRankBeforeAnyPayloadIsSent) {
  const Difference difference = GetParam();
  run_gloo(difference.world_size, kLong, [&](int rank, Communicator& communicator) {
    communicator.barrier();
    const at::Tensor output = at::full({96}, -7.0);
    const auto call = rank == difference.odd_rank ? difference.odd : difference.usual;
    const auto expected = std::string(difference.message) + ": the ranks do not run the same program";
    EXPECT_EQ(message_of([&] { call(communicator, output); }), expected);
    EXPECT_TRUE(at::equal(output, at::full({96}, -7.0))) << "something came";
    EXPECT_EQ(message_of([&] { communicator.barrier(); }, 1), expected) << "later operations fail alike";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Calls, OtherProgram,
    ::testing::Values(
        Difference{"Operation", 1, 2, gather, exchange,
                   "rank 1 calls all_to_all of 96 float as its operation 2, rank 0 all_gather of 96 float"},
        Difference{"Count", 1, 2, gather, gather_less,
                   "rank 1 calls all_gather of 48 float as its operation 2, rank 0 all_gather of 96 float"},
        Difference{"DType", 1, 3, gather, gather_doubles,
                   "rank 1 calls all_gather of 96 double as its operation 2, rank 0 all_gather of 96 float"},
        Difference{"Root", 2, 3, from_rank_0, from_rank_1,
                   "rank 2 calls broadcast of 96 float from rank 1 as its operation 2, rank 0 broadcast of 96 float "
                   "from rank 0"},
        Difference{"Barrier", 1, 2, from_rank_0, meet,
                   "rank 1 calls barrier as its operation 2, rank 0 broadcast of 96 float from rank 0"},
        Difference{"MostAreRight", 0, 4, gather, exchange,
                   "rank 0 calls all_to_all of 96 float as its operation 2, rank 1 all_gather of 96 float"}),
    [](const auto& difference) { return std::string(difference.param.name); });

}  // namespace
}  // namespace assay
