#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/log.h"
#include "harness/train/job.h"
#include "harness/train/rank_context.h"
#include "harness/train/rank_events.h"

namespace assay {
namespace {

constexpr std::int64_t kSide = 1024;
constexpr double kTolerance = 1e-5;

// The guide's check: an all_reduce of 1024 x 1024 fp32 ones must equal the world size everywhere, then a barrier.
void check_all_reduce(Communicator& communicator, const Clock& clock, RankEvents& events) {
  const at::Tensor ones = at::ones({kSide * kSide});
  const double start = clock.wall_seconds();
  communicator.all_reduce(ones);
  const double seconds = clock.wall_seconds() - start;
  const at::Tensor error = (ones - static_cast<double>(communicator.world_size())).abs();
  const auto num_wrong = error.gt(kTolerance).sum().item<std::int64_t>();
  const auto max_abs_error = error.max().item<double>();
  communicator.barrier();
  events.write("collective", {{"operation", "all_reduce"},
                              {"bytes", ones.nbytes()},
                              {"elements", ones.numel()},
                              {"num_wrong", num_wrong},
                              {"seconds", seconds},
                              {"max_abs_error", max_abs_error},
                              {"device", "cpu"},
                              {"gpu", nullptr},
                              {"memory_bytes", nullptr}});
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
    events.write("error", {{"error", name_of(error.kind())}, {"message", error.what()}, {"phase", name_of(events.phase())}});
    throw error;
  }
}

}  // namespace assay
