#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/memory/allocator_model.h"

namespace assay {

/// The settings in a value of PYTORCH_ALLOC_CONF ("max_split_size_mb:64,expandable_segments:True"). What changes
/// figures and is not modelled is said in `notes`, what changes none is passed over. Throws Error{data} for a value
/// that is none, beginning with `what`.
AllocatorSettings parse_alloc_conf(std::string_view text, const std::string& what, std::vector<std::string>& notes);

/// "max_split_size 64.00 MiB, expandable_segments", or "PyTorch's defaults"; capacity and limit are not in it.
std::string describe(const AllocatorSettings& settings);

}  // namespace assay
