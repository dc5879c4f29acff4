#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/rank_group.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/launch/world.h"
#include "harness/recipe/recipe.h"
#include "sharding/communicator.h"

namespace assay {

/// Collective: the communicator of this process's world: gloo, or a fake one if it is alone. Throws
/// Error{communication}. With `another` it is one more beside the first, which must still live; each has its own name.
std::unique_ptr<Communicator> make_communicator(const World& world, double timeout_seconds, const Clock& clock,
                                                const std::string& another = "");

/// Texts among the ranks of a communicator, for checkpoints and agreements.
class CommunicatorGroup final : public RankGroup {
 public:
  explicit CommunicatorGroup(Communicator& communicator) : communicator_(communicator) {}
  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }
  std::vector<std::string> all_gather(const std::string& text) override;

 private:
  Communicator& communicator_;
};

/// The number of the first SIGTERM or SIGINT this process got since catch_stop_signals(), or 0.
int received_stop_signal();
/// From now on these signals do not end the process: they are asked for.
void catch_stop_signals();

/// GFLOP/s of a square fp32 matrix product for each CPU second of this process, on the threads that are set: the
/// ceiling that training is compared with. About 50 ms.
double measure_gemm_gflops(const Clock& clock);

/// The exception being handled as an Error: out of device memory is `memory`, what else LibTorch throws is `internal`
/// and named as an operator's failure.
Error current_error();

}  // namespace assay
