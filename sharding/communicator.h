#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "harness/core/clock.h"

namespace assay {

/// What a communicator has done so far, all of it counted on the threads that call it.
struct CommunicationTotals {
  /// Payload to other ranks, by the closed form of each operation, counted at its start. Not in it: the 40 bytes to
  /// each rank by which the ranks compare what they are about to do.
  std::int64_t bytes_sent = 0;
  std::int64_t num_operations = 0;  ///< started ones
  double seconds = 0;               ///< that callers waited for results; what ran beside their own work is not in it
};

/// One collective operation as the transports see it.
struct CollectiveCall {
  enum class Kind { all_gather, all_to_all, reduce_scatter, broadcast, barrier };
  Kind kind;
  at::Tensor output;  ///< undefined for a barrier
  at::Tensor input;   ///< undefined for broadcast and barrier; of a reduce_scatter the tensor that output is part of
  int root = 0;       ///< of a broadcast
};

class Communicator;

/// A started collective operation. It holds the tensors it works on; default-constructed it holds nothing. Used by the
/// thread that started it, which therefore releases the tensors.
class PendingOperation {
 public:
  PendingOperation() = default;
  PendingOperation(PendingOperation&&) = default;
  /// What was held before is waited for, as by the destructor.
  PendingOperation& operator=(PendingOperation&& other) noexcept;
  /// Blocks without throwing until no transport touches the tensors any more: at most twice the communicator's time-out
  /// (headers, then payload).
  ~PendingOperation();

  /// Blocks until the result is there; holds nothing afterwards. With nothing to wait for it returns at once. The
  /// communicator must still live. Throws Error{communication} as the blocking operation would.
  void wait();

 private:
  friend class Communicator;
  PendingOperation(Communicator& communicator, CollectiveCall call, std::future<void> done);

  Communicator* communicator_ = nullptr;
  CollectiveCall call_{};
  std::future<void> done_;
};

/// Collective operations on tensors of one rank's device. Every method is collective: all ranks must call it in the
/// same order with the same sizes. Operations run in the order in which they are started, one at a time. A time-out, a
/// lost peer or ranks that call different things throw Error{communication} that names operation and rank; afterwards
/// every operation throws that error at once. Methods of one communicator are called by one thread at a time.
/// Destroying it ends operations in flight with an error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const CommunicationTotals& totals() const { return totals_; }

  /// Collective: output [world_size x n] gets the input [n] of every rank, in rank order. Both contiguous; input may be
  /// this rank's part of output. Returns at once; until wait(), output is neither read nor written and input not
  /// written.
  [[nodiscard]] PendingOperation start_all_gather(const at::Tensor& output, const at::Tensor& input);

  /// Collective: part r of input [world_size x n] goes to rank r; output holds the parts received, in rank order. Both
  /// contiguous and apart. Returns at once, as start_all_gather.
  [[nodiscard]] PendingOperation start_all_to_all(const at::Tensor& output, const at::Tensor& input);

  /// What start_reduce_scatter takes beside this tensor, to be kept until the result is there: memory of its size where
  /// ranks exchange parts and add them up themselves; undefined where the transport sums in place.
  virtual at::Tensor reduction_buffer(const at::Tensor& tensor) const;

  /// Collective: begins this rank's part of the sum of all ranks' tensors [world_size x n], into that part of its own
  /// tensor. `buffer` is the tensor's reduction_buffer. Returns at once; until finish_reduce_scatter(), neither is read
  /// nor written.
  [[nodiscard]] PendingOperation start_reduce_scatter(const at::Tensor& tensor, const at::Tensor& buffer);

  /// Blocks until the sum is in this rank's part. Where ranks add up themselves they do it in rank order, so the bits
  /// do not depend on timing; the rest is left as it was.
  void finish_reduce_scatter(PendingOperation& started, const at::Tensor& tensor, const at::Tensor& buffer) const;

  /// Collective, blocking: start_all_gather and wait.
  void all_gather(const at::Tensor& output, const at::Tensor& input);

  /// Collective, blocking: start_all_to_all and wait.
  void all_to_all(const at::Tensor& output, const at::Tensor& input);

  /// Collective, blocking: tensor of `root` everywhere.
  void broadcast(const at::Tensor& tensor, int root);

  /// Collective: returns when all ranks have called it.
  void barrier();

  /// Collective, blocking: start_reduce_scatter and finish_reduce_scatter, with a buffer that lives as long.
  void reduce_scatter_in_place(const at::Tensor& tensor);

  /// Collective, blocking: the sum everywhere, by reduce_scatter_in_place and all_gather; same bits on all ranks. Alone
  /// it does nothing.
  void all_reduce(const at::Tensor& tensor);

 protected:
  Communicator(int rank, int world_size, const Clock& clock) : rank_(rank), world_size_(world_size), clock_(clock) {}

  /// Starts the call after all those before it. The tensors live until the future is ready. Errors come through the
  /// future.
  virtual std::future<void> run(const CollectiveCall& call) = 0;

 private:
  friend class PendingOperation;
  PendingOperation start(CollectiveCall call, std::int64_t bytes_sent);
  at::Tensor own_part(const at::Tensor& tensor) const;

  int rank_;
  int world_size_;
  const Clock& clock_;
  CommunicationTotals totals_;
};

/// No other process: every rank of a world of any size is taken to hold what this one holds. For world size 1 that is
/// exact; for more it is the dry run's, on tensors without values. `sums_in_place`: it stands for a transport that
/// needs no buffer to reduce (NCCL).
std::unique_ptr<Communicator> make_fake_communicator(int rank, int world_size, const Clock& clock,
                                                     bool sums_in_place = false);

/// Where the ranks of a job meet.
struct Rendezvous {
  std::string host = "127.0.0.1";
  int port = 0;
  int listen_fd = -1;      ///< the listening socket handed down to rank 0, or -1
  bool is_server = false;  ///< this process hosts the store
  std::string prefix = "assay";
};

/// Collective: the gloo transport over TCP. `timeout_seconds` is the time-out of every operation. Throws
/// Error{communication} if the ranks do not meet within that time, or one minute if that is less.
std::unique_ptr<Communicator> make_gloo_communicator(const Rendezvous& rendezvous, int rank, int world_size,
                                                     double timeout_seconds, const Clock& clock);

}  // namespace assay
