#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checked_file.h"

namespace assay {

/// A tensor to be written. `data` is the caller's, `size_bytes` long, row by row without gaps.
struct TensorBytes {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
  std::size_t size_bytes = 0;
};

/// Writes a safetensors file and waits until it is on the disk. The data begins at a multiple of 64 bytes and tensors
/// with wider elements come first, so every tensor is aligned to its element. Returns size and checksums.
/// Throws Error{io}; Error{internal} for a name given twice, an unknown dtype, a size that does not fit dtype and
/// shape, or text that is not UTF-8. A file that could not be written in full is left behind. `on_chunk` (may be empty)
/// is called after every 8 MiB.
FileRecord write_safetensors(const std::filesystem::path& path, const std::vector<TensorBytes>& tensors,
                             const std::map<std::string, std::string>& metadata,
                             const std::function<void()>& on_chunk = {});

}  // namespace assay
