#include "harness/memory/overhead.h"

namespace assay {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMultiplyingThreads = 2;

std::int64_t context_bytes(int compute_capability) {
  if (compute_capability >= 90) return 543 * kMiB;
  if (compute_capability > 80) return 256 * kMiB;
  return compute_capability == 80 ? 481 * kMiB : 300 * kMiB;
}

std::int64_t communicator_bytes(std::int64_t world_size) {
  constexpr std::int64_t kRanksOfANode = 8;
  if (world_size <= 1) return 0;
  if (world_size > kRanksOfANode) return 1'600'000'000;
  return world_size == 2 ? 544'000'000 : 688'000'000;
}

}  // namespace

Overhead cuda_overhead(const OverheadFacts& facts) {
  constexpr std::int64_t kBeforeHopper = 8'519'680;
  return {context_bytes(facts.compute_capability),
          kMultiplyingThreads * (facts.compute_capability >= 90 ? 32 * kMiB : kBeforeHopper),
          facts.num_communicators * communicator_bytes(facts.world_size)};
}

std::int64_t usable_device_bytes(const Recipe& recipe) {
  OverheadFacts facts;
  facts.world_size = recipe.parallel.nproc_per_node;
  const Overhead overhead = overhead_of(recipe, facts);
  return recipe.device_memory_bytes.value() - overhead.context - overhead.communicators;
}

Overhead overhead_of(const Recipe& recipe, const OverheadFacts& facts, const MeasuredOverhead& measured) {
  if (recipe.device != DeviceChoice::cuda) return {};
  Overhead overhead = cuda_overhead(facts);
  overhead.context = measured.context.value_or(overhead.context);
  overhead.communicators = measured.communicators.value_or(overhead.communicators);
  return overhead;
}

}  // namespace assay
