#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// One tensor of a safetensors file.
struct TensorInfo {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "BF16", "F8_E4M3", ...
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< byte range in the whole file, header included
  std::uint64_t end = 0;

  std::uint64_t size_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  ///< where the header ends and the data begins
};

/// Bytes of a tensor; nothing if the dtype is unknown, the size overflows 64 bits or does not end at a byte.
std::optional<std::uint64_t> size_bytes_of(const std::string& dtype, const std::vector<std::int64_t>& shape);

/// "BOOL, F4, ...": every dtype that is known, for messages.
std::string known_dtypes();

/// The 8-byte length at the start of a file of `file_size` bytes, checked. `head` holds at least min(8, file_size)
/// bytes. Throws Error{data} that names `what`.
std::uint64_t safetensors_header_length(std::string_view head, std::uint64_t file_size, const std::string& what);

/// Reads and checks the whole header; `head` is the start of the file and holds the header in full (length + 8 bytes).
/// Accepts what the safetensors library accepts, except unknown or repeated keys and entries that are lists; afterwards
/// the tensors cover the file's data without hole or overlap. Memory grows with the bytes present, never with a number
/// in them. Throws Error{data} that names `what`, the tensor and the reason.
SafetensorsHeader parse_safetensors_header(std::string_view head, std::uint64_t file_size, const std::string& what);

}  // namespace assay
