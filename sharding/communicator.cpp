#include "sharding/communicator.h"

#include <ATen/ATen.h>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"

namespace assay {
namespace {

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

}  // namespace

template <class Operation>
void Communicator::timed(std::int64_t bytes_sent, Operation operation) {
  const double start = clock_.wall_seconds();
  operation();
  totals_.seconds += clock_.wall_seconds() - start;
  totals_.bytes_sent += bytes_sent;
  ++totals_.num_operations;
}

void Communicator::all_gather(const at::Tensor& output, const at::Tensor& input) {
  ASSAY_CHECK(output.numel() == input.numel() * world_size_);
  timed(bytes_of(input) * (world_size_ - 1), [&] { do_all_gather(output, input); });
}

void Communicator::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  ASSAY_CHECK(output.numel() == input.numel() && input.numel() % world_size_ == 0);
  timed(bytes_of(input) / world_size_ * (world_size_ - 1), [&] { do_all_to_all(output, input); });
}

void Communicator::broadcast(const at::Tensor& tensor, int root) {
  timed(rank_ == root ? bytes_of(tensor) * (world_size_ - 1) : 0, [&] { do_broadcast(tensor, root); });
}

void Communicator::barrier() {
  timed(0, [&] { do_barrier(); });
}

void Communicator::reduce_scatter_in_place(const at::Tensor& tensor) {
  const MemoryScope scope(MemoryCategory::communication);
  const std::int64_t part = tensor.numel() / world_size_;
  const at::Tensor received = at::empty_like(tensor);
  all_to_all(received, tensor);
  const at::Tensor own = tensor.narrow(0, rank_ * part, part);
  own.copy_(received.narrow(0, 0, part));
  for (int rank = 1; rank < world_size_; ++rank) own.add_(received.narrow(0, rank * part, part));
}

void Communicator::all_reduce(const at::Tensor& tensor) {
  if (world_size_ == 1) return;
  reduce_scatter_in_place(tensor);
  const std::int64_t part = tensor.numel() / world_size_;
  all_gather(tensor, tensor.narrow(0, rank_ * part, part));
}

}  // namespace assay
