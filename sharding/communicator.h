#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "harness/core/clock.h"

namespace assay {

/// What a communicator has done so far.
struct CommunicationTotals {
  std::int64_t bytes_sent = 0;  ///< to other ranks, by the closed form of each operation
  std::int64_t num_operations = 0;
  double seconds = 0;
};

/// Collective operations on tensors of one rank's device. Every method is collective: all ranks must call it in the
/// same order with the same sizes. All block until the result is there. A time-out or a lost peer throws
/// Error{communication} that names operation and rank; the communicator is of no use afterwards.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const CommunicationTotals& totals() const { return totals_; }

  /// Collective: output [world_size x n] gets the input [n] of every rank, in rank order. Both contiguous; input may be
  /// this rank's part of output.
  void all_gather(const at::Tensor& output, const at::Tensor& input);

  /// Collective: part r of input [world_size x n] goes to rank r; output holds the parts received, in rank order.
  void all_to_all(const at::Tensor& output, const at::Tensor& input);

  /// Collective: tensor of `root` everywhere.
  void broadcast(const at::Tensor& tensor, int root);

  /// Collective: returns when all ranks have called it.
  void barrier();

  /// Collective: this rank's part of the sum of all ranks' tensors [world_size x n], into that part of its own tensor;
  /// the rest is left as it was. Summed in rank order, so the bits do not depend on timing: an all-to-all and a sum.
  /// Takes one buffer of the tensor's size while it works.
  void reduce_scatter_in_place(const at::Tensor& tensor);

  /// Collective: the sum everywhere, by reduce_scatter_in_place and all_gather; same bits on all ranks. Alone it does
  /// nothing.
  void all_reduce(const at::Tensor& tensor);

 protected:
  Communicator(int rank, int world_size, const Clock& clock) : rank_(rank), world_size_(world_size), clock_(clock) {}

  virtual void do_all_gather(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void do_all_to_all(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void do_broadcast(const at::Tensor& tensor, int root) = 0;
  virtual void do_barrier() = 0;

 private:
  template <class Operation>
  void timed(std::int64_t bytes_sent, Operation operation);

  int rank_;
  int world_size_;
  const Clock& clock_;
  CommunicationTotals totals_;
};

/// No other process: every rank of a world of any size is taken to hold what this one holds. For world size 1 that is
/// exact; for more it is the dry run's, on tensors without values.
std::unique_ptr<Communicator> make_fake_communicator(int rank, int world_size, const Clock& clock);

/// Where the ranks of a job meet.
struct Rendezvous {
  std::string host = "127.0.0.1";
  int port = 0;
  int listen_fd = -1;      ///< the listening socket handed down to rank 0, or -1
  bool is_server = false;  ///< this process hosts the store
  std::string prefix = "assay";
};

/// Collective: the gloo transport over TCP. Throws Error{communication} if the ranks do not meet within
/// `timeout_seconds`, which is also the time-out of every later operation.
std::unique_ptr<Communicator> make_gloo_communicator(const Rendezvous& rendezvous, int rank, int world_size,
                                                     double timeout_seconds, const Clock& clock);

}  // namespace assay
