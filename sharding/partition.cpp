#include "sharding/partition.h"

#include "harness/core/error.h"

namespace assay {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout make_flat_layout(const std::vector<FlatParameterSize>& parameters, int world_size) {
  ASSAY_CHECK(world_size >= 1);
  FlatLayout layout;
  layout.offsets.resize(parameters.size());
  std::int64_t next = 0;
  for (const bool decayed : {true, false}) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].decayed != decayed) continue;
      layout.offsets[i] = next;
      next = round_up(next + parameters[i].numel, kFlatAlignment);
    }
    if (decayed) layout.decayed_end = next;
  }
  layout.numel = round_up(next, kFlatAlignment * world_size);
  layout.shard_numel = layout.numel / world_size;
  return layout;
}

}  // namespace assay
