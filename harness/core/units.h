#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace assay {

/// Bytes from "80GiB", "1.5 GiB", "80GB" (10^9), "512B" or "1073741824". A bare "G" or "80g" is refused, as is a
/// negative value, a fraction of a byte or more than 2^63 - 1. Nothing if the text is not such a size.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// "12.34 GiB", "3.20 MiB", "512 B": powers of 1024 with the unit printed.
std::string format_bytes(std::int64_t bytes);

/// "1.25 s", "12.3 ms", "45 us".
std::string format_seconds(double seconds);

/// Shortest decimal text that reads back as the same double, with '.' under any locale.
std::string format_number(double value);

/// A double from decimal text with '.', the whole text used; nothing otherwise (also for inf and nan).
std::optional<double> parse_number(std::string_view text);

}  // namespace assay
