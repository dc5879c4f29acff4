#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace assay {

// The names in a folder of checkpoints. One job owns the folder, and its rank 0 alone calls what changes it.
//   step_00000100            complete: appears by one rename, with its manifest
//   step_00000100.tmp-<id>   being written, or left by a job that died; never read, removed by the next save
//   step_00000100.replaced   complete; the earlier one, while step 100 is saved again

/// A folder with a manifest.
struct CompleteCheckpoint {
  std::int64_t step = 0;
  std::filesystem::path path;
};

/// "step_00000100".
std::string step_folder_name(std::int64_t step);

/// "rank_00003.safetensors".
std::string rank_file_name(int rank);

/// All complete checkpoints, highest step first. A folder that does not exist holds none. Throws Error{io}.
std::vector<CompleteCheckpoint> list_complete(const std::filesystem::path& folder);

/// Removes what earlier jobs left unfinished. Throws Error{io}.
void remove_unfinished(const std::filesystem::path& folder);

/// Gives a finished temporary folder its final name, step_<step>; an earlier checkpoint of that step stays complete and
/// listed until the new one is there. Afterwards the new name survives a power cut. Throws Error{io}.
std::filesystem::path publish(const std::filesystem::path& temporary, std::int64_t step);

/// Removes checkpoints so that the one of `step` and the next older ones, `keep_latest` together, are left. Those in
/// `damaged` do not count and go too; checkpoints of later steps stay. A path that is already gone is no error; one
/// that cannot be removed is logged. Returns what was removed.
std::vector<std::filesystem::path> remove_old(const std::filesystem::path& folder, std::int64_t step, int keep_latest,
                                              const std::set<std::filesystem::path>& damaged);

/// Removes a folder and all in it without throwing; false if something could not be removed.
bool remove_folder(const std::filesystem::path& folder) noexcept;

}  // namespace assay
