#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/host.h"
#include "harness/core/log.h"
#include "harness/train/job.h"
#include "harness/train/rank_context.h"
#include "harness/train/rank_events.h"

namespace assay {
namespace {

constexpr std::int64_t kElements = 1024 * 1024;
constexpr double kTolerance = 1e-5;

// The guide's check: an all_reduce of 1024 x 1024 fp32 ones must equal the world size everywhere, then a barrier. A few
// more elements where the ranks do not divide them: each sums as many as the others.
// Beside it an all_reduce of rank + 1, whose sum is world_size (world_size + 1) / 2.
void check_all_reduce(Communicator& communicator, const Clock& clock, RankEvents& events) {
  const std::int64_t world_size = communicator.world_size();
  const std::int64_t num_elements = (kElements + world_size - 1) / world_size * world_size;
  const at::Tensor ones = at::ones({num_elements});
  // Equal inputs would also sum up right if a rank got its own data back.
  const at::Tensor ranks = at::full({num_elements}, communicator.rank() + 1.0);
  const double start = clock.wall_seconds();
  communicator.all_reduce(ones);
  const double seconds = clock.wall_seconds() - start;
  communicator.all_reduce(ranks);
  const at::Tensor error = at::maximum((ones - static_cast<double>(world_size)).abs(),
                                       (ranks - static_cast<double>(world_size * (world_size + 1) / 2)).abs());
  const auto num_wrong = error.numel() - error.le(kTolerance).sum().item<std::int64_t>();
  const auto max_abs_error = error.max().item<double>();
  communicator.barrier();
  Json fields{
      {"operation", "all_reduce"}, {"bytes", ones.nbytes()}, {"elements", ones.numel()}, {"num_wrong", num_wrong},
      {"seconds", seconds},        {"device", "cpu"},        {"gpu", nullptr},           {"memory_bytes", nullptr}};
  set_number(fields, "max_abs_error", max_abs_error);
  events.write("collective", fields);
  events.write("collective", {{"operation", "barrier"}, {"bytes", 0}, {"elements", 0}, {"num_wrong", 0}});
  log_info("rank " + std::to_string(communicator.rank()) + " of " + std::to_string(communicator.world_size()) +
           " on the CPU of " + host_name() + ": all_reduce of " + std::to_string(ones.numel()) + " ones, " +
           std::to_string(num_wrong) + " wrong");
}

}  // namespace

int run_collective_check(const Job& job) {
  const SystemClock clock;
  const MemoryLedger ledger;
  RankEvents events(job, clock, ledger);
  try {
    at::set_num_threads(static_cast<int>(job.recipe.train.num_threads));
    const auto communicator = make_communicator(job.world, job.recipe.parallel.timeout_seconds, clock);
    events.write("run", {{"job", job.kind},
                         {"pid", ::getpid()},
                         {"host", host_name()},
                         {"world_size", job.world.world_size},
                         {"device", "cpu"},
                         {"backend", job.world.world_size > 1 ? "gloo" : "none"}});
    check_all_reduce(*communicator, clock, events);
    events.write("end", {{"exit_code", exit_done}, {"stopped_by", nullptr}});
    return exit_done;
  } catch (...) {
    const Error error = current_error();
    events.error(error);
    throw error;
  }
}

}  // namespace assay
