#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace assay {

/// SHA256SUMS, written last into a run folder: a folder without it is of a run that has not ended.
inline constexpr const char* kChecksums = "SHA256SUMS";

/// Writes SHA256SUMS over all regular files of the folder, sorted, as sha256sum does: `sha256sum -c SHA256SUMS` checks
/// it. Throws Error{io}.
void write_checksums(const std::filesystem::path& folder);

/// Compares the evidence of a run that has ended with its SHA256SUMS: every file listed there but those in `rewritten`
/// (paths below the folder), and whether files that an evaluation would read were added since. Reads all of them.
/// Throws Error{io} with the names of all files that were changed, removed or added, and if the folder has no
/// SHA256SUMS or a damaged one.
void check_evidence(const std::filesystem::path& folder, const std::set<std::string>& rewritten);

}  // namespace assay
