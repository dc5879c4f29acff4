#include "sharding/communicator.h"

#include <ATen/ATen.h>

#include <utility>

#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "sharding/rank_order_sum.h"

namespace assay {
namespace {

std::int64_t bytes_of(const at::Tensor& tensor) { return static_cast<std::int64_t>(tensor.nbytes()); }

}  // namespace

PendingOperation::PendingOperation(Communicator& communicator, CollectiveCall call, std::future<void> done)
    : communicator_(&communicator), call_(std::move(call)), done_(std::move(done)) {}

PendingOperation& PendingOperation::operator=(PendingOperation&& other) noexcept {
  if (done_.valid()) done_.wait();
  communicator_ = other.communicator_;
  call_ = std::move(other.call_);
  done_ = std::move(other.done_);
  return *this;
}

PendingOperation::~PendingOperation() {
  if (done_.valid()) done_.wait();
}

void PendingOperation::wait() {
  if (!done_.valid()) return;
  PendingOperation held = std::move(*this);  // released here, with a result or an error
  const double start = communicator_->clock_.wall_seconds();
  held.done_.wait();
  communicator_->totals_.seconds += communicator_->clock_.wall_seconds() - start;
  held.done_.get();
}

at::Tensor Communicator::own_part(const at::Tensor& tensor) const {
  const std::int64_t part = tensor.numel() / world_size_;
  return tensor.narrow(0, rank_ * part, part);
}

PendingOperation Communicator::start(CollectiveCall call, std::int64_t bytes_sent) {
  totals_.bytes_sent += bytes_sent;
  ++totals_.num_operations;
  auto done = run(call);
  return {*this, std::move(call), std::move(done)};
}

PendingOperation Communicator::start_all_gather(const at::Tensor& output, const at::Tensor& input) {
  ASSAY_CHECK(output.numel() == input.numel() * world_size_ && output.scalar_type() == input.scalar_type());
  ASSAY_CHECK(output.is_contiguous() && input.is_contiguous());
  return start({CollectiveCall::Kind::all_gather, output, input}, bytes_of(input) * (world_size_ - 1));
}

PendingOperation Communicator::start_all_to_all(const at::Tensor& output, const at::Tensor& input) {
  ASSAY_CHECK(output.numel() == input.numel() && input.numel() % world_size_ == 0);
  ASSAY_CHECK(output.is_contiguous() && input.is_contiguous() && output.scalar_type() == input.scalar_type());
  return start({CollectiveCall::Kind::all_to_all, output, input}, bytes_of(input) / world_size_ * (world_size_ - 1));
}

at::Tensor Communicator::reduction_buffer(const at::Tensor& tensor) const { return at::empty_like(tensor); }

PendingOperation Communicator::start_reduce_scatter(const at::Tensor& tensor, const at::Tensor& buffer) {
  if (buffer.defined()) return start_all_to_all(buffer, tensor);
  ASSAY_CHECK(tensor.is_contiguous() && tensor.numel() % world_size_ == 0);
  return start({CollectiveCall::Kind::reduce_scatter, own_part(tensor), tensor},
               bytes_of(tensor) / world_size_ * (world_size_ - 1));
}

void Communicator::finish_reduce_scatter(PendingOperation& started, const at::Tensor& tensor,
                                         const at::Tensor& buffer) const {
  started.wait();
  if (buffer.defined()) sum_in_rank_order(own_part(tensor), buffer, world_size_);
}

void Communicator::all_gather(const at::Tensor& output, const at::Tensor& input) {
  start_all_gather(output, input).wait();
}

void Communicator::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  start_all_to_all(output, input).wait();
}

void Communicator::broadcast(const at::Tensor& tensor, int root) {
  ASSAY_CHECK(tensor.is_contiguous());
  start({CollectiveCall::Kind::broadcast, tensor, {}, root}, rank_ == root ? bytes_of(tensor) * (world_size_ - 1) : 0)
      .wait();
}

void Communicator::barrier() { start({CollectiveCall::Kind::barrier, {}, {}}, 0).wait(); }

void Communicator::reduce_scatter_in_place(const at::Tensor& tensor) {
  const MemoryScope scope(MemoryCategory::communication);
  const at::Tensor buffer = reduction_buffer(tensor);
  auto started = start_reduce_scatter(tensor, buffer);
  finish_reduce_scatter(started, tensor, buffer);
}

void Communicator::all_reduce(const at::Tensor& tensor) {
  if (world_size_ == 1) return;
  reduce_scatter_in_place(tensor);
  all_gather(tensor, own_part(tensor));
}

}  // namespace assay
