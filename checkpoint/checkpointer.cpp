#include "checkpoint/checkpointer.h"

#include <unistd.h>

#include <random>

#include "checkpoint/checkpoint_folder.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/files.h"

namespace assay {
namespace {

/// Why a checkpoint was not used. One that could not be read now (no file descriptor left, a disk that is away) may be
/// whole all the same.
struct Unusable {
  std::string reason;
  bool damaged = false;
};

/// Unlike that of any other job, also on another machine.
std::string new_id() {
  std::random_device random;
  char text[20];
  std::snprintf(text, sizeof text, "%08x%08x", static_cast<unsigned>(random()), static_cast<unsigned>(random()));
  return text;
}

/// Why the checkpoint cannot be used; nothing if all ranks succeeded. Damage on any rank comes first: then nothing can
/// be said of how the file fits. Throws what else a rank found.
std::optional<Unusable> unusable_by(const std::vector<RankOutcome>& outcomes, const std::filesystem::path& path) {
  for (const auto kind : {ErrorKind::data, ErrorKind::io}) {
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const auto& outcome = outcomes[rank];
      if (outcome.ok || outcome.kind != kind) continue;
      return Unusable{"rank " + std::to_string(rank) + ": " + outcome.text, kind == ErrorKind::data};
    }
  }
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (!outcomes[rank].ok) {
      throw Error(outcomes[rank].kind,
                  "restoring " + path.string() + ": rank " + std::to_string(rank) + ": " + outcomes[rank].text);
    }
  }
  return std::nullopt;
}

Manifest read_complete_manifest(const std::filesystem::path& path) {
  auto manifest = read_manifest(path);
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    const auto expected = rank_file_name(static_cast<int>(rank));
    if (manifest.files[rank].name != expected) {
      throw Error(ErrorKind::data,
                  (path / manifest_name).string() + " names " + manifest.files[rank].name + " in place of " + expected);
    }
  }
  return manifest;
}

}  // namespace

struct Checkpointer::Attempt {
  std::optional<RestoreResult> result;
  Unusable failure;
};

Checkpointer::Checkpointer(std::filesystem::path folder, int keep_latest, RankGroup& group,
                           std::function<void()> on_chunk)
    : folder_(std::move(folder)), keep_latest_(keep_latest), group_(group), on_chunk_(std::move(on_chunk)) {
  ASSAY_CHECK(keep_latest >= 1);
}

std::filesystem::path Checkpointer::make_temporary(std::int64_t step, const RunDescription& run,
                                                   const std::string& what) {
  // Rank 0 chooses the id; all see whether they mean the same checkpoint.
  const auto words = on_all_ranks(group_, what, [&] {
    return dump_json(
        Json{{"step", step}, {"recipe_hash", run.recipe_hash}, {"id", group_.rank() == 0 ? new_id() : ""}});
  });
  const auto first = parse_json(words[0], what);
  for (std::size_t rank = 1; rank < words.size(); ++rank) {
    const auto other = parse_json(words[rank], what);
    if (other["step"] != first["step"] || other["recipe_hash"] != first["recipe_hash"]) {
      throw Error(ErrorKind::internal, what + ": rank " + std::to_string(rank) +
                                           " saves another step or recipe: " + words[rank] + ", rank 0: " + words[0]);
    }
  }
  const auto temporary = folder_ / (step_folder_name(step) + ".tmp-" + first["id"].get<std::string>());
  on_all_ranks(group_, what, [&]() -> std::string {
    if (group_.rank() == 0) {
      make_folders(folder_);
      remove_unfinished(folder_);
      make_folders(temporary);
    }
    return "";
  });
  return temporary;
}

SaveResult Checkpointer::save(std::int64_t step, const std::vector<TensorBytes>& tensors, const Json& rank_state,
                              const RunDescription& run) {
  const SystemClock clock;
  const double start = clock.wall_seconds();
  const auto what = "saving step " + std::to_string(step) + " in " + folder_.string();
  const auto temporary = make_temporary(step, run, what);
  SaveResult result;
  try {
    const auto records = on_all_ranks(group_, what, [&] {
      return dump_json(
          to_json(write_rank_file(temporary / rank_file_name(group_.rank()), tensors, rank_state, on_chunk_)));
    });
    Manifest manifest{step, group_.world_size(), {}, run, utc_now()};
    for (const auto& record : records) manifest.files.push_back(file_record_from_json(parse_json(record, what), what));
    result.size_bytes = manifest.size_bytes();
    result.path = on_all_ranks(group_, what, [&]() -> std::string {
      if (group_.rank() != 0) return "";
      write_file_durably(temporary / manifest_name, manifest_text(manifest));
      return publish(temporary, step).string();
    })[0];
  } catch (const Error&) {
    if (group_.rank() == 0) remove_folder(temporary);
    throw;
  }
  damaged_.erase(result.path);
  result.removed = remove_old_checkpoints(step, what);
  result.seconds = clock.wall_seconds() - start;
  return result;
}

Checkpointer::Paths Checkpointer::remove_old_checkpoints(std::int64_t step, const std::string& what) {
  const auto lists = on_all_ranks(group_, what, [&] {
    auto names = Json::array();
    if (group_.rank() == 0) {
      for (const auto& path : remove_old(folder_, step, keep_latest_, damaged_))
        names.push_back(path.filename().string());
    }
    return dump_json(names);
  });
  Paths removed;
  for (const auto& name : parse_json(lists[0], what)) removed.push_back(folder_ / name.get<std::string>());
  return removed;
}

Checkpointer::Attempt Checkpointer::attempt(const std::filesystem::path& path,
                                            const std::vector<TensorDestination>& destinations) {
  // Rank 0's reading of the manifest is everyone's.
  const auto manifests = try_on_all_ranks(
      group_, [&]() -> std::string { return group_.rank() == 0 ? manifest_text(read_complete_manifest(path)) : ""; });
  if (const auto failure = unusable_by(manifests, path)) return {std::nullopt, *failure};
  RestoreResult result;
  result.path = path;
  result.manifest = parse_manifest(manifests[0].text, (path / manifest_name).string());
  result.step = result.manifest.step;
  result.size_bytes = result.manifest.size_bytes();
  if (result.manifest.world_size != group_.world_size()) {
    throw Error(ErrorKind::recipe, path.string() + " was saved by " + std::to_string(result.manifest.world_size) +
                                       " ranks, this run has " + std::to_string(group_.world_size()) +
                                       "; start it with the same number of ranks");
  }
  const auto outcomes = try_on_all_ranks(group_, [&]() -> std::string {
    const auto& record = result.manifest.files[static_cast<std::size_t>(group_.rank())];
    result.rank_state = read_rank_file(path / record.name, record, destinations, on_chunk_);
    return "";
  });
  if (const auto failure = unusable_by(outcomes, path)) return {std::nullopt, *failure};
  return {std::move(result), {}};
}

std::optional<RestoreResult> Checkpointer::restore_newest(const std::vector<TensorDestination>& destinations) {
  const SystemClock clock;
  const double start = clock.wall_seconds();
  const auto listed = on_all_ranks(group_, "looking for checkpoints", [&] {
    auto names = Json::array();
    if (group_.rank() == 0) {
      for (const auto& checkpoint : list_complete(folder_)) names.push_back(checkpoint.path.filename().string());
    }
    return dump_json(names);
  });
  const auto names = parse_json(listed[0], "list of checkpoints");
  std::vector<SkippedCheckpoint> skipped;
  std::string reasons;
  for (const auto& name : names) {
    const auto path = folder_ / name.get<std::string>();
    auto attempted = attempt(path, destinations);
    if (attempted.result) {
      attempted.result->skipped = std::move(skipped);
      attempted.result->seconds = clock.wall_seconds() - start;
      return std::move(attempted.result);
    }
    if (attempted.failure.damaged) damaged_.insert(path);
    reasons += "\n  " + path.filename().string() + ": " + attempted.failure.reason;
    skipped.push_back({path, attempted.failure.reason});
  }
  if (skipped.empty()) return std::nullopt;
  throw Error(ErrorKind::io, "no whole checkpoint is left in " + folder_.string() + ":" + reasons);
}

RestoreResult Checkpointer::restore(const std::filesystem::path& checkpoint,
                                    const std::vector<TensorDestination>& destinations) {
  const SystemClock clock;
  const double start = clock.wall_seconds();
  auto attempted = attempt(checkpoint, destinations);
  if (!attempted.result) {
    const bool damaged = attempted.failure.damaged;
    throw Error(damaged ? ErrorKind::data : ErrorKind::io, "checkpoint " + checkpoint.string() +
                                                               (damaged ? " is damaged: " : " cannot be read: ") +
                                                               attempted.failure.reason);
  }
  attempted.result->seconds = clock.wall_seconds() - start;
  return std::move(*attempted.result);
}

}  // namespace assay
