#pragma once

#include <filesystem>
#include <string>

#include "harness/core/json.h"

namespace assay {

/// What a path holds, for programs and for a person.
struct Listing {
  Json json;
  std::string text;
};

/// Lists and checks a safetensors file, a model folder, a checkpoint folder (every checksum is verified, so all of it
/// is read) or a manifest. Throws Error{data} if the path is none of these or its content is refused.
Listing show(const std::filesystem::path& path);

}  // namespace assay
