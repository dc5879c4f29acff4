#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/core/error.h"

namespace assay {

/// The ranks that write and read a checkpoint together.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// The text of every rank, in rank order, on every rank. Collective: every rank calls it in the same order. Blocks
  /// until all have, so it is a barrier too; throws Error{communication} if one never does.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;
};

/// How a piece of work went on one rank.
struct RankOutcome {
  bool ok = true;
  ErrorKind kind = ErrorKind::internal;  ///< if not ok
  std::string text;                      ///< what the work returned, or the error's message
};

/// Does the work on this rank and tells all ranks how it went everywhere, in rank order. Never throws for the work.
std::vector<RankOutcome> try_on_all_ranks(RankGroup& group, const std::function<std::string()>& work);

/// The same, but a failure on any rank throws on every rank the same Error: "<what>: rank <first that failed>: ...".
/// Returns what the work returned on each rank.
std::vector<std::string> on_all_ranks(RankGroup& group, const std::string& what,
                                      const std::function<std::string()>& work);

}  // namespace assay
