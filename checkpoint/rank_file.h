#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checked_file.h"
#include "checkpoint/safetensors_writer.h"
#include "harness/core/json.h"

namespace assay {

// The part of a checkpoint that one rank writes and reads: a safetensors file with the rank's tensors, and its other
// state as JSON in the metadata.

/// Where a tensor is restored to. `data` is the caller's, `size_bytes` long, row by row without gaps.
struct TensorDestination {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  void* data = nullptr;
  std::size_t size_bytes = 0;
};

/// `on_chunk` and what is thrown are as of write_safetensors.
FileRecord write_rank_file(const std::filesystem::path& path, const std::vector<TensorBytes>& tensors,
                           const Json& state, const std::function<void()>& on_chunk = {});

/// Reads the file once, front to back; every chunk is compared with its checksum before its bytes reach a destination.
/// Returns the state. Throws Error{data} or Error{io} if the file is damaged, and Error{recipe} if it is whole but
/// holds other tensors than the destinations: a name too many or too few, another dtype or shape. Nothing was written
/// to a destination in the last case; after damage they hold a mixture.
Json read_rank_file(const std::filesystem::path& path, const FileRecord& record,
                    const std::vector<TensorDestination>& destinations, const std::function<void()>& on_chunk = {});

}  // namespace assay
