#include "harness/memory/pickle_writer.h"

#include <bit>
#include <limits>
#include <utility>

#include "harness/core/error.h"

namespace assay {
namespace {

/// As Python's pickler: a viewer takes what is between two marks at once.
constexpr std::int64_t kBatch = 1000;

}  // namespace

void PickleWriter::begin_dict() {
  bytes_ += "}(";  // EMPTY_DICT, MARK
  open_.push_back({false, 0});
}

void PickleWriter::begin_list() {
  bytes_ += "](";  // EMPTY_LIST, MARK
  open_.push_back({true, 0});
}

void PickleWriter::end() {
  ASSAY_CHECK(!open_.empty());
  bytes_ += open_.back().list ? "e" : "u";  // APPENDS, SETITEMS
  open_.pop_back();
  value_ended();
}

void PickleWriter::text(std::string_view value) {
  const auto [place, added] = texts_.emplace(value, num_kept_);
  if (!added) {
    get(place->second);
  } else {
    byte('X');  // BINUNICODE
    little_endian(value.size(), 4);
    bytes_ += value;
    byte(0x94);  // MEMOIZE
    ++num_kept_;
  }
  value_ended();
}

void PickleWriter::integer(std::int64_t value) {
  put_integer(value);
  value_ended();
}

void PickleWriter::real(double value) {
  byte('G');  // BINFLOAT, big-endian
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) byte(static_cast<unsigned char>(bits >> shift));
  value_ended();
}

void PickleWriter::boolean(bool value) {
  byte(value ? 0x88 : 0x89);  // NEWTRUE, NEWFALSE
  value_ended();
}

void PickleWriter::tuple(std::int64_t first, std::int64_t second) {
  put_integer(first);
  put_integer(second);
  byte(0x86);  // TUPLE2
  value_ended();
}

std::uint32_t PickleWriter::keep() {
  // After a batch of a list was closed, the last value is no longer on top.
  ASSAY_CHECK(!open_.empty() && !open_.back().list);
  byte(0x94);  // MEMOIZE
  return num_kept_++;
}

void PickleWriter::again(std::uint32_t kept) {
  get(kept);
  value_ended();
}

std::string PickleWriter::finish() {
  ASSAY_CHECK(open_.empty());
  byte('.');  // STOP
  return std::move(bytes_);
}

void PickleWriter::little_endian(std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) byte(static_cast<unsigned char>(value >> (8 * i)));
}

void PickleWriter::put_integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    byte('K');  // BININT1
    byte(static_cast<unsigned char>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    byte('J');  // BININT
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    byte(0x8a);  // LONG1
    byte(8);
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
}

void PickleWriter::get(std::uint32_t index) {
  if (index < 256) {
    byte('h');  // BINGET
    byte(static_cast<unsigned char>(index));
  } else {
    byte('j');  // LONG_BINGET
    little_endian(index, 4);
  }
}

void PickleWriter::value_ended() {
  if (open_.empty() || !open_.back().list) return;
  if (++open_.back().num_values % kBatch == 0) bytes_ += "e(";  // APPENDS, MARK
}

}  // namespace assay
