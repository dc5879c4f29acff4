#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/rank_group.h"

namespace assay {

struct SaveResult {
  std::filesystem::path path;
  std::uint64_t size_bytes = 0;                ///< files of all ranks
  double seconds = 0;                          ///< on this rank, waiting for the others included
  std::vector<std::filesystem::path> removed;  ///< older checkpoints; the same on all ranks
};

/// A checkpoint that was not used, and why.
struct SkippedCheckpoint {
  std::filesystem::path path;
  std::string reason;
};

struct RestoreResult {
  std::filesystem::path path;
  std::int64_t step = 0;
  Json rank_state;  ///< what this rank gave to save()
  Manifest manifest;
  std::vector<SkippedCheckpoint> skipped;  ///< newer ones, damaged or unreadable; the same on all ranks
  std::uint64_t size_bytes = 0;            ///< files of all ranks
  double seconds = 0;                      ///< on this rank, waiting for the others included
};

/// Complete-or-absent checkpoints in one folder that all ranks see. A checkpoint step_<step> appears by one rename
/// after every rank's file and the manifest are on the disk; at every instant, also after a power cut, each is whole or
/// not there. save, restore and restore_newest are collective and return or throw alike on all ranks. They keep no
/// reference to what they are given.
class Checkpointer {
 public:
  /// `folder` need not exist. `keep_latest` (at least 1) complete checkpoints are kept. `group` must outlive this
  /// object. `on_chunk` (may be empty) is called after every 8 MiB that this rank has written or read.
  Checkpointer(std::filesystem::path folder, int keep_latest, RankGroup& group, std::function<void()> on_chunk = {});

  /// Saves this rank's tensors and state; `step` and `run` are equal on all ranks. State is kept as JSON: numbers come
  /// back exactly, but a number that is not finite as null. Replaces an earlier checkpoint of the same step. If any
  /// rank fails, older ones are untouched and nothing of the new one is left (or all of it, if only making its name
  /// durable failed), and all ranks throw an Error of the kind of the first rank that failed, which it names. Otherwise
  /// rank 0 removes older checkpoints beyond `keep_latest` and what earlier jobs left unfinished, before any rank
  /// returns.
  SaveResult save(std::int64_t step, const std::vector<TensorBytes>& tensors, const Json& rank_state,
                  const RunDescription& run);

  /// Restores the newest checkpoint that is whole on all ranks; damaged and unreadable ones are skipped. Damaged
  /// ones are removed by the next save; unreadable ones, which may be whole, are not. Nothing if the folder holds no
  /// checkpoint: then the destinations are untouched. Throws Error{io} if all are skipped; Error{recipe} if the newest
  /// whole one has another world size or other tensors than the destinations of a rank (too many, too few, other dtype
  /// or shape), Error{usage} if its format is newer than this program. After an Error the destinations may hold a
  /// mixture: use them only after a restore that returned.
  std::optional<RestoreResult> restore_newest(const std::vector<TensorDestination>& destinations);

  /// Restores this checkpoint; as above, but damage throws Error{data}, and what cannot be read Error{io}.
  RestoreResult restore(const std::filesystem::path& checkpoint, const std::vector<TensorDestination>& destinations);

 private:
  struct Attempt;
  using Paths = std::vector<std::filesystem::path>;

  std::filesystem::path make_temporary(std::int64_t step, const RunDescription& run, const std::string& what);
  Paths remove_old_checkpoints(std::int64_t step, const std::string& what);
  Attempt attempt(const std::filesystem::path& path, const std::vector<TensorDestination>& destinations);

  std::filesystem::path folder_;
  int keep_latest_;
  RankGroup& group_;
  std::function<void()> on_chunk_;
  std::set<std::filesystem::path> damaged_;
};

}  // namespace assay
