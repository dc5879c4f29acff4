#include "checkpoint/safetensors.h"

namespace assay {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      mapped_(path),
      header_(parse_safetensors_header(mapped_.bytes(), mapped_.bytes().size(), path.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

}  // namespace assay
