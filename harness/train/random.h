#pragma once

#include <cstdint>

namespace assay {

/// SplitMix64 (Steele, Lea, Flood 2014): the next 64 random bits of a stream that is one number.
inline std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15ULL;
  std::uint64_t bits = state;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31U);
}

/// Start of the stream that belongs to a pair of numbers.
inline std::uint64_t random_stream(std::int64_t first, std::int64_t second) {
  auto state = static_cast<std::uint64_t>(first);
  state = next_random(state) ^ static_cast<std::uint64_t>(second);
  return next_random(state);
}

/// Uniform in [0, bound); the bias is below bound / 2^64.
inline std::int64_t random_below(std::uint64_t& state, std::int64_t bound) {
  __extension__ using Wide = unsigned __int128;
  const Wide wide = static_cast<Wide>(next_random(state)) * static_cast<std::uint64_t>(bound);
  return static_cast<std::int64_t>(wide >> 64U);
}

}  // namespace assay
