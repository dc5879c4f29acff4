#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/units.h"
#include "harness/memory/alloc_conf.h"
#include "harness/memory/allocator_trace.h"
#include "harness/memory/segment_table.h"

// The text format of allocator traces; docs/replay.md describes it.

namespace assay {
namespace {

using Action = TraceEvent::Action;
using State = AllocatorSegment::State;

/// What stands behind a letter: a address, b bytes (1 or more), n bytes (0 or more), k stream, p pool, t state, f flag.
struct Form {
  char letter;
  int section;  ///< of the file: start, events, end
  std::string_view fields;
};
constexpr std::array<Form, 12> kForms{{{'I', 0, "abkp"},
                                       {'L', 0, "abb"},
                                       {'A', 1, "abk"},
                                       {'Q', 1, "a"},
                                       {'F', 1, "a"},
                                       {'S', 1, "abk"},
                                       {'X', 1, "abk"},
                                       {'M', 1, "abk"},
                                       {'U', 1, "abk"},
                                       {'E', 1, ""},
                                       {'G', 2, "abkpnnf"},
                                       {'B', 2, "abtn"}}};

constexpr std::array<std::string_view, 8> kCounts{"events",        "allocs",         "frees",        "segment_allocs",
                                                  "segment_frees", "reserved_start", "reserved_end", "allocated_end"};

class TextTraceReader {
 public:
  TextTraceReader(std::string_view text, const std::string& name) : text_(text) {
    trace_.name = name;
    trace_.place_word = "line";
  }

  AllocatorTrace read() {
    for (std::size_t begin = 0; begin < text_.size();) {
      const auto end = std::min(text_.find('\n', begin), text_.size());
      ++line_;
      read_line(text_.substr(begin, end - begin));
      begin = end + 1;
    }
    ++line_;  // what is missing would stand behind the last line
    enter_section(2);
    finish();
    return std::move(trace_);
  }

 private:
  struct Live {
    std::int64_t bytes = 0;
    std::int64_t requested_bytes = 0;
    std::int64_t line = 0;
    bool begun_free = false;
  };
  using Values = std::array<std::int64_t, 7>;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, trace_.name + ":" + std::to_string(line_) + ": " + what);
  }

  /// The start of a text for a message.
  static std::string shown(std::string_view text) {
    std::string start(text.substr(0, 40));
    std::replace_if(
        start.begin(), start.end(), [](unsigned char letter) { return letter < ' ' || letter > '~'; }, '?');
    return start;
  }

  static std::string hex(std::int64_t address) {
    std::array<char, 16> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), address, 16).ptr;
    return {digits.data(), end};
  }

  void read_line(std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    if (line[0] == '#') return read_header(line);
    const auto* form = std::find_if(kForms.begin(), kForms.end(), [&](const Form& f) { return f.letter == line[0]; });
    if (form == kForms.end() || (line.size() > 1 && line[1] != ' ')) {
      fail("\"" + shown(line) + "\" is no line of an allocator trace (letters: # I L A Q F S X M U E " +
           "G B); a memory snapshot is a pickle of protocol 2 to 5 and starts with the byte 80 hex");
    }
    enter_section(form->section);
    take(form->letter, values_of(*form, line.substr(1)));
  }

  void read_header(std::string_view line) {
    if (section_ > 0 || !segments_.by_address().empty()) return;
    const auto equal = line.find('=');
    if (equal == std::string_view::npos) return;
    auto key = line.substr(1, equal - 1);
    while (key.starts_with(' ')) key.remove_prefix(1);
    const auto value = line.substr(equal + 1);
    if (key == "alloc_conf") {
      trace_.alloc_conf = value;
      trace_.settings =
          parse_alloc_conf(value, trace_.name + ":" + std::to_string(line_) + ": alloc_conf", trace_.notes);
    } else if (key == "expandable") {
      expandable_ = value == "1";
    } else if (std::find(kCounts.begin(), kCounts.end(), key) != kCounts.end()) {
      counts_[std::string(key)] = number(value, 10, std::string(key), std::int64_t{1} << 60);
    }
  }

  std::int64_t number(std::string_view text, int base, const std::string& what, std::int64_t max) const {
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (text.empty() || code == std::errc::invalid_argument || end != text.data() + text.size())
      fail(what + " \"" + shown(text) + "\" is no number" + (base == 16 ? " in hexadecimal" : ""));
    if (code != std::errc() || value < 0 || value > max)
      fail(what + " " + shown(text) + " is out of range, allowed: 0 to " + std::to_string(max));
    return value;
  }

  std::int64_t value_of(char kind, std::string_view word) const {
    switch (kind) {
      case 'a':
        return number(word, 16, "the address", kMaxTraceAddress);
      case 'b':
      case 'n': {
        const auto bytes = number(word, 10, "the size", kind == 'b' ? kMaxTraceBytes : kMaxTraceInUse);
        if (kind == 'b' && bytes == 0) fail("a size of 0 bytes");
        return bytes;
      }
      case 'k':
        return number(word, 10, "the stream", std::int64_t{1} << 62);
      case 'p':
        if (word != "small" && word != "large") fail("the pool is \"" + shown(word) + "\", neither small nor large");
        return word == "small";
      case 't':
        if (word == "inactive") return static_cast<int>(State::free);
        if (word == "active_allocated") return static_cast<int>(State::allocated);
        if (word == "active_pending_free" || word == "active_awaiting_free") return static_cast<int>(State::waiting);
        fail("the block's state is \"" + shown(word) + "\"");
      default:
        return number(word, 10, "the flag", 1);
    }
  }

  Values values_of(const Form& form, std::string_view words) const {
    Values values{};
    std::size_t count = 0;
    while (!words.empty()) {
      words.remove_prefix(1);
      const auto word = words.substr(0, words.find(' '));
      if (count == form.fields.size()) fail_count(form);
      values[count] = value_of(form.fields[count], word);
      ++count;
      words.remove_prefix(word.size());
    }
    if (count != form.fields.size()) fail_count(form);
    return values;
  }

  [[noreturn]] void fail_count(const Form& form) const {
    fail(std::string("a line ") + form.letter + " has " + std::to_string(form.fields.size()) +
         " values behind the letter; this one has another number (was the file cut?)");
  }

  void enter_section(int section) {
    if (section < section_) fail("lines I and L come first, then events, then G and B; this one is out of order");
    if (section_ == 0 && section > 0) build_start();
    if (section_ < 2 && section == 2) check_counts();
    section_ = section;
  }

  void take(char letter, const Values& v) {
    switch (letter) {
      case 'I':
        return add_segment(v[0], {v[1], v[2], v[3] == 1, expandable_});
      case 'L':
        return take_live_block(v);
      case 'G':
        return take_end_segment(v);
      case 'B':
        return take_end_block(v);
      default:
        take_event(letter, v);
    }
  }

  void add_segment(std::int64_t address, const SegmentTable::Segment& segment) {
    if (!segments_.add(address, segment)) fail("the segment at " + hex(address) + " overlaps one that is there");
    if (segments_.reserved_bytes() > kMaxTraceInUse) fail("all segments together hold more than 2^50 bytes");
  }

  void take_live_block(const Values& v) {
    if (v[2] > v[1]) fail("the block holds less than was requested");
    if (segments_.find(v[0], v[1]) == nullptr) fail("the block at " + hex(v[0]) + " lies in no segment (lines I)");
    if (!start_blocks_.emplace(v[0], Live{v[1], v[2], line_}).second) fail("a second block at " + hex(v[0]));
  }

  /// The blocks of lines L in the segments of lines I.
  void build_start() {
    auto block = start_blocks_.begin();
    for (const auto& [address, segment] : segments_.by_address()) {
      AllocatorSegment built{address, segment.bytes, segment.stream, segment.small, segment.expandable, {}};
      auto end = address;
      for (; block != start_blocks_.end() && block->first < address + segment.bytes; ++block) {
        const auto& live = block->second;
        if (block->first < end) {
          line_ = live.line;
          fail("the block at " + hex(block->first) + " overlaps the one before it");
        }
        end = block->first + live.bytes;
        built.blocks.push_back({block->first, live.bytes, live.requested_bytes, State::allocated});
        live_.emplace(block->first, live);
        in_use_ += live.requested_bytes;
      }
      trace_.start.push_back(std::move(built));
    }
    start_bytes_ = segments_.reserved_bytes();
  }

  void take_event(char letter, const Values& v) {
    TraceEvent event{Action::allocate, v[0], v[1], v[2], line_};
    switch (letter) {
      case 'A':
        take_allocation(event);
        break;
      case 'Q':
      case 'F':
        event.action = letter == 'Q' ? Action::begin_free : Action::free;
        take_free(event);
        break;
      case 'E':
        event.action = Action::empty_cache;
        break;
      case 'S':
      case 'M':
        event.action = letter == 'S' ? Action::segment_allocate : Action::map;
        // Mapped memory of the pool for small requests comes in pages of 2 MiB, of the other in pages of 20 MiB.
        add_segment(v[0], {v[1], v[2], letter == 'M' && v[1] < AllocatorModel::kLargeSegmentBytes, letter == 'M'});
        ++num_segment_allocs_;
        break;
      default:
        event.action = letter == 'X' ? Action::segment_free : Action::unmap;
        if (!segments_.remove(v[0], v[1])) fail("no segment of " + std::to_string(v[1]) + " bytes is at " + hex(v[0]));
        ++num_segment_frees_;
    }
    trace_.events.push_back(event);
  }

  void take_allocation(const TraceEvent& event) {
    const auto [place, added] = live_.emplace(event.address, Live{event.bytes, event.bytes, line_});
    if (!added) {
      fail("a block at " + hex(event.address) + " is in use since line " + std::to_string(place->second.line));
    }
    in_use_ += event.bytes;
    if (in_use_ > kMaxTraceInUse) fail("all blocks together hold more than 2^50 bytes");
    ++num_allocs_;
  }

  void take_free(const TraceEvent& event) {
    const auto block = live_.find(event.address);
    if (block == live_.end()) {
      const auto freed = freed_.find(event.address);
      if (freed == freed_.end()) fail("a free of " + hex(event.address) + ", where no block was ever allocated");
      fail("the block at " + hex(event.address) + " is freed twice, first in line " + std::to_string(freed->second));
    }
    if (event.action == Action::begin_free) {
      if (std::exchange(block->second.begun_free, true)) fail("the block at " + hex(event.address) + " is freed twice");
      ++num_waiting_;
      return;
    }
    if (block->second.begun_free) --num_waiting_;
    in_use_ -= block->second.requested_bytes;
    live_.erase(block);
    freed_[event.address] = line_;
    ++num_frees_;
  }

  void take_end_segment(const Values& v) {
    check_tiles();
    trace_.end.push_back({v[0], v[1], v[2], v[3] == 1, v[6] == 1, {}});
    tiled_ = v[0];
    end_reserved_ += v[1];
    if (end_reserved_ > kMaxTraceInUse) fail("all segments together hold more than 2^50 bytes");
  }

  void take_end_block(const Values& v) {
    if (trace_.end.empty()) fail("a line B without its segment (line G)");
    if (v[0] != tiled_)
      fail("the block at " + hex(v[0]) + " should begin at " + hex(tiled_) + ", where the last one ends");
    const auto& segment = trace_.end.back();
    if (v[0] + v[1] > segment.address + segment.bytes) fail("the block ends behind its segment (line G)");
    const auto state = static_cast<State>(v[2]);
    trace_.end.back().blocks.push_back({v[0], v[1], v[3], state});
    tiled_ += v[1];
    if (state == State::allocated) end_allocated_ += v[1];
  }

  void check_tiles() const {
    if (trace_.end.empty() || tiled_ == trace_.end.back().address + trace_.end.back().bytes) return;
    fail("the blocks (lines B) of the segment at " + hex(trace_.end.back().address) +
         " do not fill it; the trace was cut");
  }

  void check(const std::string& key, std::int64_t found) const {
    const auto said = counts_.find(key);
    if (said == counts_.end() || said->second == found) return;
    fail("the header says " + key + "=" + std::to_string(said->second) + ", the lines say " + std::to_string(found) +
         "; the trace was cut or changed");
  }

  void check_counts() {
    trace_.num_events = num_allocs_ + 2 * num_frees_ + num_waiting_ + num_segment_allocs_ + num_segment_frees_;
    check("reserved_start", start_bytes_);
    check("allocs", num_allocs_);
    check("frees", num_frees_);
    check("segment_allocs", num_segment_allocs_);
    check("segment_frees", num_segment_frees_);
    check("events", trace_.num_events);
  }

  void finish() {
    check_tiles();
    if (end_reserved_ != segments_.reserved_bytes()) {
      fail("the segments at the end (lines G) hold " + std::to_string(end_reserved_) + " bytes, the events leave " +
           std::to_string(segments_.reserved_bytes()) + "; the trace was cut");
    }
    check("reserved_end", end_reserved_);
    check("allocated_end", end_allocated_);
  }

  std::string_view text_;
  AllocatorTrace trace_;
  std::int64_t line_ = 0;
  int section_ = 0;
  bool expandable_ = false;
  std::map<std::string, std::int64_t> counts_;
  SegmentTable segments_;
  std::map<std::int64_t, Live> start_blocks_;
  std::unordered_map<std::int64_t, Live> live_;
  std::unordered_map<std::int64_t, std::int64_t> freed_;  ///< address: line
  std::int64_t in_use_ = 0;
  std::int64_t start_bytes_ = 0;
  std::int64_t num_allocs_ = 0;
  std::int64_t num_frees_ = 0;
  std::int64_t num_waiting_ = 0;
  std::int64_t num_segment_allocs_ = 0;
  std::int64_t num_segment_frees_ = 0;
  std::int64_t tiled_ = 0;  ///< where the blocks of the last G end so far
  std::int64_t end_reserved_ = 0;
  std::int64_t end_allocated_ = 0;
};

}  // namespace

AllocatorTrace parse_text_trace(std::string_view text, const std::string& name) {
  return TextTraceReader(text, name).read();
}

}  // namespace assay
