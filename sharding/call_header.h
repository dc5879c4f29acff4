#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sharding/communicator.h"

namespace assay {

/// What the ranks compare before an operation; sent as it is.
struct CallHeader {
  std::int64_t sequence = 0;  ///< 1 is the communicator's first operation
  std::int64_t kind = 0;
  std::int64_t dtype = 0;
  std::int64_t num_elements = 0;  ///< of the output
  std::int64_t root = 0;          ///< of a broadcast
  bool operator==(const CallHeader&) const = default;
};

CallHeader header_of(const CollectiveCall& call, std::int64_t sequence);

/// "all_gather", "all_to_all", "reduce_scatter", "broadcast" or "barrier".
std::string name_of(CollectiveCall::Kind kind);

/// One header a rank. Nothing if all are equal; else a sentence about the lowest rank that does not call what most do
/// (of equally many, what the lower ranks do) and the lowest of those.
std::optional<std::string> difference_among(const std::vector<CallHeader>& headers);

}  // namespace assay
