#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// Two lower-case hexadecimal digits for each byte.
std::string hex_of(std::span<const unsigned char> bytes);

/// Up to the first newline, or all of it.
std::string first_line(std::string_view text);

/// "[2, 3]": a shape.
std::string text_of_sizes(const std::vector<std::int64_t>& sizes);

}  // namespace assay
