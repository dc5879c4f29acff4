// Damages traces and snapshots at random, always with the same seed: whatever the bytes, the readers either refuse with
// Error{data} or hand out a trace that can be replayed.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>

#include "harness/core/error.h"
#include "harness/memory/packed_file.h"
#include "harness/memory/replay.h"

namespace assay {
namespace {

const std::string kData = ASSAY_SOURCE_DIR "/tests/data/memory/";

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}

  std::string mutate(std::string bytes) {
    for (auto count = below(4) + 1; count > 0; --count) mutate_once(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }

  void mutate_once(std::string& bytes) {
    const auto place = below(bytes.size() + 1);
    const auto length = std::min(bytes.size() - place, below(24));
    switch (below(5)) {
      case 0:
        if (place < bytes.size()) bytes[place] = static_cast<char>(below(256));
        break;
      case 1:
        bytes.insert(place, pieces_[below(pieces_.size())]);
        break;
      case 2:
        bytes.erase(place, length);
        break;
      case 3:
        bytes.replace(place, length, pieces_[below(pieces_.size())]);
        break;
      default:
        bytes.insert(place, bytes.substr(place, length * 4));
        break;
    }
  }

  std::mt19937 random_{20261201};
  std::vector<std::string> pieces_;
};

std::int64_t peak_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

struct Outcome {
  int read = 0;
  int refused = 0;
};

/// Replays what is read, as recorded and on a device of 64 MiB.
template <class Read>
void try_one(const Read& read, Outcome& outcome) {
  try {
    const AllocatorTrace trace = read();
    auto settings = trace.settings;
    replay(trace, {settings, true});
    settings.capacity_bytes = std::int64_t{64} << 20;
    const auto small = replay(trace, {settings, false});
    ASSERT_GE(small.statistics.allocated.current, 0);
    ++outcome.read;
  } catch (const Error& error) {
    ASSERT_EQ(error.kind(), ErrorKind::data) << error.what();
    ++outcome.refused;
  }
}

/// A seed small enough that a change hits what matters.
const std::string kText =
    "# events=9\n# alloc_conf=max_split_size_mb:64\nI 7f0000000000 2097152 0 small\nL 7f0000000000 1024 1000\n"
    "A 7f0000000400 512 0\nS 7f1000000000 20971520 0\nA 7f1000000000 5000000 0\nQ 7f0000000400\nF 7f0000000400\n"
    "F 7f0000000000\nE\nX 7f0000000000 2097152 0\nM 7f2000000000 4194304 3\nU 7f2000200000 2097152 3\n"
    "G 7f1000000000 20971520 0 large 5000192 5000192 0\nB 7f1000000000 5000192 active_allocated 5000000\n"
    "B 7f10004c4c00 15971328 inactive 0\nG 7f2000000000 2097152 3 small 0 0 1\nB 7f2000000000 2097152 inactive 0\n";

TEST(TraceFuzz, DamagedTextIsRefusedOrReplayed) {
  parse_text_trace(kText.substr(kText.find('\n') + 1), "seed");
  Mutator mutator({"A ",
                   "F ",
                   "\n",
                   " ",
                   "0",
                   "-1",
                   "7f0000000000",
                   "7f1000000000",
                   "4398046511104",
                   "512",
                   "2097152",
                   "99999999999999999999",
                   "E\n",
                   "Q 7f1000000000\n",
                   "F 7f1000000000\n",
                   "A 1 4398046511104 0\n",
                   "M 0 4398046511104 0\n",
                   "S 3 1 7\n",
                   "small",
                   "active_allocated",
                   std::string(1, '\0'),
                   "\xff",
                   "# alloc_conf=expandable_segments:True\n",
                   "# alloc_conf=roundup_power2_divisions:1048576\n"});
  Outcome outcome;
  for (int round = 0; round < 30'000; ++round) {
    auto text = mutator.mutate(kText.substr(kText.find('\n') + 1));
    ASSERT_NO_FATAL_FAILURE(try_one([&] { return parse_text_trace(text, "fuzz"); }, outcome)) << text;
  }
  EXPECT_GT(outcome.read, 500);
  EXPECT_GT(outcome.refused, 5000);
}

TEST(TraceFuzz, DamagedSnapshotsAreRefusedOrReplayed) {
  const auto before = peak_memory_bytes();
  const auto seed = read_packed_file(kData + "snapshot_small.pickle.gz", 1 << 24);
  parse_memory_snapshot(seed, "seed");
  using namespace std::string_literals;
  Mutator mutator({"(",
                   "]",
                   "}",
                   "e",
                   "u",
                   "a",
                   "s",
                   "h\x00"s,
                   "h\x05",
                   "\x94",
                   "\x8c\x04size",
                   "\x8c\x06"
                   "action",
                   "K\x00"s,
                   "J\xff\xff\xff\xff",
                   "\x8a\x06\x00\x00\x00\x00\x00\x10"s,
                   "\x8a\xff",
                   "X\xff\xff\xff\x7f",
                   "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
                   "N",
                   "\x88",
                   "G",
                   "t",
                   "\x86",
                   "R",
                   "c",
                   ".",
                   "j\xff\xff\xff\xff",
                   "r\xff\xff\xff\xff",
                   "\x8c\x05"
                   "alloc",
                   "\x8c\x0e"
                   "free_requested"});
  Outcome outcome;
  for (int round = 0; round < 4'000; ++round) {
    auto bytes = mutator.mutate(seed);
    ASSERT_NO_FATAL_FAILURE(try_one([&] { return parse_memory_snapshot(bytes, "fuzz"); }, outcome)) << round;
  }
  EXPECT_GT(outcome.read, 50);
  EXPECT_GT(outcome.refused, 1000);
  EXPECT_LT(peak_memory_bytes() - before, std::int64_t{512} << 20);
}

}  // namespace
}  // namespace assay
