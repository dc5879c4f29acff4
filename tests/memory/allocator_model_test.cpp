#include "harness/memory/allocator_model.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace assay {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// One row of the table of short sequences: figures of PyTorch's own allocator, each derived by hand in the last
/// column.
struct Case {
  std::string name;
  AllocatorSettings settings;
  std::vector<std::string> operations;
  std::vector<std::int64_t> reserved;
  std::vector<std::int64_t> allocated;
  std::string oom_at;
  std::int64_t num_alloc_retries = 0;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> values;
  for (const auto& part : split(text, ' ')) values.push_back(std::stoll(part));
  return values;
}

AllocatorSettings settings_of(const std::string& configuration, const std::string& capacity, double fraction) {
  AllocatorSettings settings;
  settings.capacity_bytes = std::stoll(capacity) * kMiB;
  settings.limit_bytes = static_cast<std::int64_t>(fraction * static_cast<double>(settings.capacity_bytes));
  const auto value = configuration.substr(configuration.find(':') + 1);
  if (configuration.starts_with("max_split_size_mb")) settings.max_split_size_bytes = std::stoll(value) * kMiB;
  if (configuration.starts_with("roundup")) settings.roundup_power2_divisions = std::stoll(value);
  if (configuration.starts_with("garbage")) settings.garbage_collection_threshold = std::stod(value);
  if (configuration.starts_with("expandable")) settings.expandable_segments = true;
  return settings;
}

std::vector<Case> read_cases() {
  std::ifstream file(ASSAY_SOURCE_DIR "/tests/data/memory/allocator_synthetic.csv");
  std::vector<Case> cases;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    const auto cells = split(line, ',');
    cases.push_back({cells[0], settings_of(cells[1], cells[2], std::stod(cells[3])), split(cells[4], ' '),
                     numbers(cells[5]), numbers(cells[6]), cells[7], std::stoll(cells[8])});
  }
  return cases;
}

/// "3M" or "512k" or "100", without the stream behind '@'.
std::int64_t bytes_of(const std::string& text) {
  const std::int64_t unit = text.find('M') != std::string::npos ? kMiB : text.find('k') != std::string::npos ? 1024 : 1;
  return std::stoll(text) * unit;
}

void run(const Case& item) {
  SCOPED_TRACE(item.name);
  AllocatorModel model(item.settings);
  std::map<std::string, AllocatorModel::BlockId> blocks;
  for (std::size_t i = 0; i < item.operations.size(); ++i) {
    const auto& operation = item.operations[i];
    SCOPED_TRACE(operation);
    if (operation[0] == 'a') {
      const auto at = operation.find('@');
      const auto size = operation.substr(operation.find('=') + 1);
      const auto block =
          model.allocate(bytes_of(size), at == std::string::npos ? 0 : std::stoll(operation.substr(at + 1)));
      EXPECT_EQ(block.has_value(), operation != item.oom_at);
      if (block) blocks[operation.substr(1, operation.find('=') - 1)] = *block;
    } else if (operation[0] == 'f') {
      model.free(blocks.at(operation.substr(1)));
    } else {
      model.empty_cache();
    }
    if (i < item.reserved.size()) {
      EXPECT_EQ(model.statistics().reserved.current, item.reserved[i]);
      EXPECT_EQ(model.statistics().allocated.current, item.allocated[i]);
    }
  }
  EXPECT_EQ(model.statistics().num_alloc_retries, item.num_alloc_retries);
  EXPECT_EQ(model.statistics().num_ooms, item.oom_at.empty() ? 0 : 1);
}

TEST(AllocatorModel, ShortSequences) {
  const auto cases = read_cases();
  ASSERT_EQ(cases.size(), 25U);
  for (const auto& item : cases) run(item);
}

TEST(AllocatorModel, AFreedBlockIsAllocatedNoMoreButActiveUntilTheOtherStreamIsDone) {
  AllocatorModel model;
  const auto block = *model.allocate(2 * kMiB);
  model.begin_free(block);
  EXPECT_EQ(model.statistics().allocated.current, 0);
  EXPECT_EQ(model.statistics().active.current, 2 * kMiB);
  const auto other = *model.allocate(2 * kMiB);
  EXPECT_NE(model.address(other), model.address(block));
  const std::int64_t address = model.address(block);
  model.free(block);
  EXPECT_EQ(model.statistics().active.current, 2 * kMiB);
  EXPECT_EQ(model.address(*model.allocate(2 * kMiB)), address);
}

TEST(AllocatorModel, APeakThatStartsAgainStartsAtWhatIsAlive) {
  AllocatorModel model;
  model.allocate(100 * kMiB);
  model.free(*model.allocate(50 * kMiB));
  model.reset_peaks();
  EXPECT_EQ(model.statistics().allocated.peak, 100 * kMiB);
  model.allocate(10 * kMiB);
  EXPECT_EQ(model.statistics().allocated.peak, 110 * kMiB);
  EXPECT_EQ(model.statistics().requested.peak, 110 * kMiB);
}

TEST(AllocatorModel, ASnapshotTakenOverGoesOnAlike) {
  for (const bool expandable : {false, true}) {
    AllocatorSettings settings;
    settings.expandable_segments = expandable;
    AllocatorModel model(settings);
    std::vector<AllocatorModel::BlockId> blocks;
    for (int i = 0; i < 40; ++i) blocks.push_back(*model.allocate((i % 7) * 3 * kMiB + 700 * (i + 1)));
    for (int i = 0; i < 40; i += 3) model.free(blocks[static_cast<std::size_t>(i)]);
    model.empty_cache();
    const auto segments = model.segments();
    std::int64_t next = std::int64_t{1} << 50;
    const auto place = [&](std::int64_t bytes, std::int64_t) { return std::exchange(next, next + bytes); };
    AllocatorModel copy(settings, place);
    const auto in_use = copy.begin_with(segments);
    EXPECT_EQ(copy.statistics().reserved.current, model.statistics().reserved.current);
    EXPECT_EQ(copy.statistics().allocated.current, model.statistics().allocated.current);
    EXPECT_EQ(copy.statistics().requested.current, model.statistics().requested.current);
    EXPECT_EQ(copy.statistics().inactive_split.current, model.statistics().inactive_split.current);
    EXPECT_EQ(copy.segments().size(), segments.size());
    for (const auto block : in_use) copy.free(block);
    copy.empty_cache();
    EXPECT_EQ(copy.statistics().reserved.current, 0);
    EXPECT_EQ(copy.statistics().inactive_split.current, 0);
    EXPECT_TRUE(copy.segments().empty());
  }
}

/// Whatever is asked, segments are covered by their blocks without a gap, free neighbours are one block, and the
/// figures are the sums over them.
TEST(AllocatorModel, RandomSequencesKeepTheBooks) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::srand(seed);
    const auto random = [](int below) { return static_cast<std::int64_t>(std::rand() % below); };
    AllocatorSettings settings;
    settings.capacity_bytes = (seed % 3 == 0) ? 0 : (100 + random(200)) * kMiB;
    settings.limit_bytes = seed % 5 == 0 ? settings.capacity_bytes * 9 / 10 : 0;
    settings.expandable_segments = seed % 2 == 0;
    if (seed % 7 == 0) settings.max_split_size_bytes = (21 + random(30)) * kMiB;
    if (seed % 11 == 0) settings.roundup_power2_divisions = 4;
    if (seed % 5 == 0) settings.garbage_collection_threshold = 0.6;
    AllocatorModel model(settings);
    std::vector<AllocatorModel::BlockId> blocks;
    for (int i = 0; i < 300; ++i) {
      if (random(100) < 55 || blocks.empty()) {
        const std::int64_t bytes = 1 + (random(3) == 0 ? random(40'000'000) : random(2'000'000));
        if (const auto block = model.allocate(bytes, random(2))) blocks.push_back(*block);
      } else {
        const auto at = static_cast<std::size_t>(random(static_cast<int>(blocks.size())));
        model.free(blocks[at]);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
      }
      if (random(60) == 0) model.empty_cache();
    }
    std::int64_t reserved = 0;
    std::int64_t allocated = 0;
    std::int64_t split = 0;
    for (const auto& segment : model.segments()) {
      std::int64_t address = segment.address;
      bool free_before = false;
      for (const auto& block : segment.blocks) {
        ASSERT_EQ(block.address, address);
        address += block.bytes;
        const bool free = block.state == AllocatorSegment::State::free;
        ASSERT_FALSE(free && free_before);
        free_before = free;
        if (!free) allocated += block.bytes;
        if (free && segment.blocks.size() > 1 && !segment.expandable) split += block.bytes;
      }
      ASSERT_EQ(address, segment.address + segment.bytes);
      reserved += segment.bytes;
    }
    ASSERT_EQ(model.statistics().reserved.current, reserved);
    ASSERT_EQ(model.statistics().allocated.current, allocated);
    ASSERT_EQ(model.statistics().inactive_split.current, split);
    if (settings.capacity_bytes > 0) {
      ASSERT_LE(model.statistics().reserved.peak, settings.capacity_bytes);
    }
    for (const auto block : blocks) model.free(block);
    model.empty_cache();
    ASSERT_EQ(model.statistics().reserved.current, 0);
    ASSERT_TRUE(model.segments().empty());
  }
}

}  // namespace
}  // namespace assay
