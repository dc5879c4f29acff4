#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "harness/memory/allocator_model.h"

namespace assay {

/// One event of a recorded allocator.
struct TraceEvent {
  enum class Action : std::uint8_t {
    allocate,
    begin_free,  ///< asked for; another stream still uses the block
    free,        ///< complete, whether or not begin_free came before
    segment_allocate,
    segment_free,
    map,
    unmap,
    empty_cache,   ///< all that is free goes back to the device; in front of a run of segment_free or unmap
    out_of_memory  ///< the request failed; `address` means nothing
  };
  Action action = Action::allocate;
  std::int64_t address = 0;
  std::int64_t bytes = 0;   ///< as asked for, or of the segment; 0 of a free that does not say
  std::int64_t stream = 0;  ///< 0 of a free
  std::int64_t place = 0;   ///< for messages: its line, or its number in the snapshot's list
};

/// What an allocator did: where it began, every request and release, and where it ended.
struct AllocatorTrace {
  std::string name;                     ///< of the file
  std::string place_word;               ///< what TraceEvent::place counts: "line" or "event"
  std::string alloc_conf;               ///< PYTORCH_ALLOC_CONF of the recording
  AllocatorSettings settings;           ///< the same, understood; capacity unlimited
  std::vector<std::string> notes;       ///< sentences: what of the recording is not modelled
  std::int64_t num_events = 0;          ///< as PyTorch counts them: a release is two
  std::vector<AllocatorSegment> start;  ///< blocks in use only
  std::vector<TraceEvent> events;
  std::vector<AllocatorSegment> end;
};

/// Beyond these a number in a trace is a mistake.
inline constexpr std::int64_t kMaxTraceBytes = std::int64_t{1} << 42;    ///< of one request or segment
inline constexpr std::int64_t kMaxTraceInUse = std::int64_t{1} << 50;    ///< of all together
inline constexpr std::int64_t kMaxTraceAddress = std::int64_t{1} << 57;  ///< of the largest address spaces in use

/// Reads a trace in the text format of docs/replay.md or a PyTorch memory snapshot (pickle), plain or packed with gzip.
/// Throws Error{data} that names the file and the line (text) or byte (pickle) of what is wrong: a number that is none,
/// a block freed twice or never allocated, a piece missing at the end.
AllocatorTrace read_allocator_trace(const std::filesystem::path& path);

/// The text format. `name` stands for the file in messages.
AllocatorTrace parse_text_trace(std::string_view text, const std::string& name);

/// A memory snapshot as torch.cuda.memory._dump_snapshot writes it. Of several devices, the one with the most events.
/// What was alive at the start is derived from the segments at the end and the events. Takes the bytes of the file.
AllocatorTrace parse_memory_snapshot(std::string bytes, const std::string& name);

}  // namespace assay
