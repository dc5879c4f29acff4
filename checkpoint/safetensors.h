#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "harness/core/files.h"

namespace assay {

/// A safetensors file, mapped into memory and fully checked except for the values.
class SafetensorsFile {
 public:
  /// Throws Error{data} that names file, tensor and reason; an empty file and a Git LFS pointer are named as such.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }  ///< in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  std::uint64_t size_bytes() const { return mapped_.bytes().size(); }

  /// Null if there is no such tensor. The pointer lives as long as this object.
  const TensorInfo* find(const std::string& name) const;

  /// The tensor's bytes, little-endian, row by row, at any alignment. They live as long as this object.
  std::string_view bytes(const TensorInfo& info) const { return mapped_.bytes().substr(info.begin, info.size_bytes()); }

 private:
  std::filesystem::path path_;
  MappedFile mapped_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace assay
