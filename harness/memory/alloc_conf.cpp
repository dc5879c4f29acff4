#include "harness/memory/alloc_conf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "harness/core/error.h"
#include "harness/core/units.h"

namespace assay {
namespace {

/// Keys that change how memory is taken, not how much.
constexpr std::array<std::string_view, 8> kWithoutEffect{
    "release_lock_on_cudamalloc",     "release_lock_on_hipmalloc",        "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",   "pinned_num_register_threads",      "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb", "graph_capture_record_stream_reuse"};

[[noreturn]] void refuse(const std::string& what, std::string_view key, std::string_view value,
                         const std::string& expected) {
  throw Error(ErrorKind::data,
              what + ": " + std::string(key) + ":" + std::string(value) + " is given, expected is " + expected);
}

std::int64_t integer(std::string_view value) {
  std::int64_t number = -1;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
  return code == std::errc() && end == value.data() + value.size() ? number : -1;
}

/// Splits at commas that stand in no bracket.
std::vector<std::string_view> entries_of(std::string_view text) {
  std::vector<std::string_view> entries;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) depth += (text[i] == '[') - (text[i] == ']');
    if (i < text.size() && (text[i] != ',' || depth > 0)) continue;
    if (i > begin) entries.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return entries;
}

}  // namespace

AllocatorSettings parse_alloc_conf(std::string_view text, const std::string& what, std::vector<std::string>& notes) {
  AllocatorSettings settings;
  for (const auto entry : entries_of(text)) {
    const auto colon = entry.find(':');
    const auto key = entry.substr(0, colon);
    const auto value = colon == std::string_view::npos ? std::string_view() : entry.substr(colon + 1);
    const auto number = integer(value);
    if (key == "max_split_size_mb") {
      if (number <= 20 || number > (1 << 22)) refuse(what, key, value, "a number of MiB above 20");
      settings.max_split_size_bytes = number << 20;
    } else if (key == "expandable_segments") {
      if (value != "True" && value != "False") refuse(what, key, value, "True or False");
      settings.expandable_segments = value == "True";
    } else if (key == "roundup_power2_divisions" && !value.starts_with("[")) {
      if (number < 0 || number > (1 << 20) || (number > 1 && !std::has_single_bit(static_cast<std::uint64_t>(number))))
        refuse(what, key, value, "a power of two");
      settings.roundup_power2_divisions = number;
    } else if (key == "garbage_collection_threshold") {
      const auto threshold = parse_number(value);
      if (!threshold || *threshold <= 0 || *threshold >= 1) refuse(what, key, value, "a number between 0 and 1");
      settings.garbage_collection_threshold = *threshold;
    } else if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) == kWithoutEffect.end() &&
               entry != "backend:native") {
      notes.push_back("the setting " + std::string(entry) + " of the recording is not modelled");
    }
  }
  return settings;
}

std::string describe(const AllocatorSettings& settings) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (settings.max_split_size_bytes) add("max_split_size " + format_bytes(*settings.max_split_size_bytes));
  if (settings.expandable_segments) add("expandable_segments");
  if (settings.roundup_power2_divisions > 1)
    add("roundup_power2_divisions " + std::to_string(settings.roundup_power2_divisions));
  if (settings.garbage_collection_threshold > 0)
    add("garbage_collection_threshold " + format_number(settings.garbage_collection_threshold));
  return text.empty() ? "PyTorch's defaults" : text;
}

}  // namespace assay
