// Damages valid files at random, always with the same seed: whatever the bytes, the parser either refuses with
// Error{data} or hands out ranges that lie inside the file, follow each other and have the size of their shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "tests/checkpoint/checkpoint_files.h"

namespace assay {
namespace {

std::vector<std::string> seeds() {
  std::vector<std::filesystem::path> paths;
  for (const auto& folder : {"valid", "malformed"}) {
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(ASSAY_SOURCE_DIR) /
                                                                 "tests/data/safetensors" / folder)) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const auto& path : paths) files.push_back(read_file(path));
  return files;
}

class Mutator {
 public:
  Mutator() : seeds_(seeds()) {}

  std::string next() {
    std::string bytes = pick(seeds_);
    for (auto count = below(4) + 1; count > 0; --count) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }
  const std::string& pick(const std::vector<std::string>& list) { return list[below(list.size())]; }

  void mutate(std::string& bytes) {
    static const std::vector<std::string> tokens{"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ":",
                                                 "\"",
                                                 "\\u0000",
                                                 "\\ud800",
                                                 "-1",
                                                 "0",
                                                 "18446744073709551615",
                                                 "9223372036854775808",
                                                 "1e9",
                                                 "4.0",
                                                 "null",
                                                 "true",
                                                 "\"F4\"",
                                                 "\"F8_E8M0\"",
                                                 "\"shape\"",
                                                 "\"data_offsets\"",
                                                 "\"__metadata__\"",
                                                 "\"t\"",
                                                 std::string(1, '\0'),
                                                 "\xff",
                                                 "\xc3\xa9",
                                                 " ",
                                                 "\n"};
    const auto place = below(bytes.size() + 1);
    switch (below(6)) {
      case 0:
        if (place < bytes.size()) bytes[place] = static_cast<char>(below(256));
        break;
      case 1:
        bytes.insert(place, pick(tokens));
        break;
      case 2:
        bytes.erase(place, below(8) + 1);
        break;
      case 3:
        bytes.replace(place, std::min(bytes.size() - place, below(5)), pick(tokens));
        break;
      case 4:
        bytes += std::string(below(9), 'x');
        break;
      case 5:  // the header's length follows the rest, so that damage inside the JSON is reached
        if (bytes.size() > 8) bytes[0] = static_cast<char>(std::min<std::size_t>(bytes.size() - 8, 255) - below(3));
        break;
    }
  }

  std::mt19937 random_{20261130};
  std::vector<std::string> seeds_;
};

TEST(SafetensorsFuzz, DamagedHeadersAreRefusedOrConsistent) {
  Mutator mutator;
  int accepted = 0;
  constexpr int rounds = 40'000;
  for (int round = 0; round < rounds; ++round) {
    const auto bytes = mutator.next();
    SafetensorsHeader header;
    try {
      header = parse_safetensors_header(bytes, bytes.size(), "fuzz");
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::data) << round << ": " << error.what();
      continue;
    }
    ++accepted;
    auto expected = header.data_begin;
    for (const auto& tensor : header.tensors) {
      ASSERT_EQ(tensor.begin, expected) << round;
      ASSERT_EQ(size_bytes_of(tensor.dtype, tensor.shape), tensor.size_bytes()) << round;
      expected = tensor.end;
    }
    ASSERT_EQ(expected, bytes.size()) << round;
  }
  // Both sides must have been reached, or the test would prove nothing.
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, rounds / 2);
}

}  // namespace
}  // namespace assay
