#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checked_file.h"
#include "harness/core/json.h"

namespace assay {

/// The version this program writes, and the newest it reads.
inline constexpr int manifest_format_version = 1;

/// Name of the manifest in a checkpoint folder. Its presence means that the checkpoint is complete.
inline constexpr const char* manifest_name = "manifest.json";

/// The run a checkpoint belongs to; equal on all ranks.
struct RunDescription {
  Json recipe;  ///< resolved
  std::string recipe_hash;
  Json versions;  ///< object of program and library versions
};

/// What manifest.json says: everything that makes the files of a checkpoint one whole.
struct Manifest {
  std::int64_t step = 0;
  int world_size = 0;
  std::vector<FileRecord> files;  ///< in rank order
  RunDescription run;
  std::string created;  ///< UTC, RFC 3339

  std::uint64_t size_bytes() const;  ///< of all files
};

Json to_json(const FileRecord& record);
/// Throws Error{data} that names `what` and the key.
FileRecord file_record_from_json(const Json& json, const std::string& what);

/// As text, with a checksum over itself.
std::string manifest_text(const Manifest& manifest);

/// Throws Error{usage} if the format version is newer than this program, Error{data} if anything is missing, of the
/// wrong type, out of range or changed since it was written (checksum). Unknown keys are taken as later additions.
Manifest parse_manifest(std::string_view text, const std::string& what);

/// Reads folder/manifest.json; throws as parse_manifest, and Error{data} if there is no such file.
Manifest read_manifest(const std::filesystem::path& folder);

}  // namespace assay
