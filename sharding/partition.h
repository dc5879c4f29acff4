#pragma once

#include <cstdint>
#include <vector>

namespace assay {

/// Vector units of the kernels end at a multiple of this many elements: every parameter of a flat buffer starts at one,
/// and every shard ends at one, so that the same element is computed by the same instructions under every strategy.
inline constexpr std::int64_t kFlatAlignment = 16;

/// One parameter as the flat layout sees it.
struct FlatParameterSize {
  std::int64_t numel = 0;
  bool decayed = true;  ///< weight decay applies
};

/// Where the parameters of one unit lie in its flat buffer, in elements: decayed ones first, then the others, then
/// padding, so that every rank holds an equal shard.
struct FlatLayout {
  std::vector<std::int64_t> offsets;  ///< of each parameter, in the order given
  std::int64_t decayed_end = 0;       ///< elements below are decayed
  std::int64_t numel = 0;             ///< with padding: world_size x shard_numel
  std::int64_t shard_numel = 0;
};

FlatLayout make_flat_layout(const std::vector<FlatParameterSize>& parameters, int world_size);

}  // namespace assay
