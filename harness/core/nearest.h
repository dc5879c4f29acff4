#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// Insertions, deletions, replacements and swaps of neighbours that turn one text into the other; case is ignored, '-'
/// and '_' are equal.
std::size_t edit_distance(std::string_view left, std::string_view right);

/// The candidate with the smallest distance (the first of equals) if it is near enough to be a slip of the keyboard (at
/// most a third of the longer text, at least one), else an empty string.
std::string nearest_name(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace assay
