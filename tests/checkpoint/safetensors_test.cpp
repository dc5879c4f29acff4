#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <limits>
#include <set>

#include "checkpoint/safetensors_writer.h"
#include "harness/core/json.h"
#include "tests/checkpoint/checkpoint_files.h"

namespace assay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kData = std::filesystem::path(ASSAY_SOURCE_DIR) / "tests/data/safetensors";

// What the official library accepts and a reader may refuse if it says why; these are refused here.
const std::set<std::string> kRefusedHere{"malformed/unknown_entry_key.safetensors",
                                         "malformed/duplicate_tensor_same.safetensors",
                                         "malformed/metadata_duplicate_key.safetensors",
                                         "malformed/leading_space.safetensors", "malformed/entry_is_list.safetensors"};

// Names of torch's dtypes, as the table has them, and those of the format.
const std::map<std::string, std::string> kDtypeNames{{"bool", "BOOL"},
                                                     {"uint8", "U8"},
                                                     {"int8", "I8"},
                                                     {"int16", "I16"},
                                                     {"int32", "I32"},
                                                     {"int64", "I64"},
                                                     {"float16", "F16"},
                                                     {"bfloat16", "BF16"},
                                                     {"float32", "F32"},
                                                     {"float64", "F64"},
                                                     {"float8_e4m3fn", "F8_E4M3"},
                                                     {"float8_e5m2", "F8_E5M2"}};

Json load_json(const char* name) { return parse_json(read_file(kData / name), name); }

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

/// A file with this header and data; returns its bytes.
std::string file_of(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

SafetensorsHeader parse(const std::string& bytes) { return parse_safetensors_header(bytes, bytes.size(), "file"); }

TEST(SafetensorsTable, EveryFileIsAcceptedOrRefusedAsByTheOfficialLibrary) {
  const auto table = load_json("table.json");
  ASSERT_EQ(table.size(), 102U);
  for (const auto& [name, verdicts] : table.items()) {
    SCOPED_TRACE(name);
    const auto& expected = verdicts["safe_open"];
    const auto error = error_of([&] { SafetensorsFile{kData / name}; });
    if (expected["result"] == "reject" || kRefusedHere.contains(name)) {
      EXPECT_THAT(error, AllOf(StartsWith("data: "), HasSubstr(std::filesystem::path(name).filename().string())));
      continue;
    }
    ASSERT_EQ(error, "");
    const SafetensorsFile file(kData / name);
    EXPECT_EQ(file.tensors().size(), expected["tensors"].size());
    for (const auto& [tensor, facts] : expected["tensors"].items()) {
      const auto* info = file.find(tensor);
      ASSERT_NE(info, nullptr) << tensor;
      EXPECT_EQ(info->dtype, kDtypeNames.at(facts[0].get<std::string>()));
      EXPECT_EQ(info->shape, facts[1].get<std::vector<std::int64_t>>());
    }
    const auto metadata = expected["metadata"].is_null() ? Json::object() : expected["metadata"];
    EXPECT_EQ(Json(file.metadata()), Json(metadata.get<std::map<std::string, std::string>>()));
  }
}

TEST(SafetensorsTable, EveryTensorOfTheValidFilesHasTheExactBytes) {
  const auto values = load_json("valid_values.json");
  ASSERT_EQ(values.size(), 17U);
  std::size_t compared = 0;
  for (const auto& [name, tensors] : values.items()) {
    const SafetensorsFile file(kData / "valid" / name);
    for (const auto& [tensor, facts] : tensors.items()) {
      const auto* info = file.find(tensor);
      ASSERT_NE(info, nullptr) << name << " " << tensor;
      EXPECT_EQ(hex_of(file.bytes(*info)), facts["bytes_hex"].get<std::string>()) << name << " " << tensor;
      ++compared;
    }
    EXPECT_EQ(file.tensors().size(), tensors.size()) << name;
  }
  EXPECT_GT(compared, 30U);
}

TEST(SafetensorsTable, AMessageNamesTheTensorAndTheReason) {
  const std::map<std::string, std::string> reasons{
      {"overlap", "tensor \"b\": its data begins at 4, the data before it ends at 8 (overlap)"},
      {"hole_between", "(hole)"},
      {"hole_at_start", "(hole)"},
      {"data_too_long", "1 bytes after the last tensor"},
      {"data_truncated", "tensor \"t\": data_offsets [0,16] reach beyond the 15 bytes of data"},
      {"offsets_reversed", "reversed"},
      {"dtype_torch_name", "unknown dtype \"float32\" (known: BOOL, F4"},
      {"shape_times_dtype_too_big", "shape [5] of F32 needs 20 bytes, data_offsets [0,16] hold 16"},
      {"shape_product_wraps_to_4", "has no size in whole 64-bit bytes"},
      {"header_beyond_file", "the file has only"},
      {"zero_length_file", "is empty"},
      {"json_deep_nesting", "nested deeper"},
      {"duplicate_tensor_same", "\"t\" is given twice"},
  };
  for (const auto& [name, reason] : reasons) {
    EXPECT_THAT(error_of([&] { SafetensorsFile{kData / "malformed" / (name + ".safetensors")}; }), HasSubstr(reason))
        << name;
  }
}

// The 8-byte length is never an allocation size (I12): every false claim is refused before memory is taken.
TEST(SafetensorsReader, RefusesEveryFalseHeaderLengthInConstantMemory) {
  const TemporaryFolder folder;
  const auto path = folder.path / "t.safetensors";
  const auto whole = file_of(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234");
  const std::uint64_t size = whole.size();
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_SELF, &before);
  for (const std::uint64_t claim :
       {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 63U, std::uint64_t{1} << 32U, size, size - 7,
        std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100'000'001}, std::uint64_t{100'000'000}}) {
    auto bytes = whole;
    std::memcpy(bytes.data(), &claim, 8);
    write_file(path, bytes);
    EXPECT_THAT(error_of([&] { SafetensorsFile{path}; }), AllOf(StartsWith("data: "), HasSubstr("t.safetensors")))
        << claim;
    // The same claim in a file that is long enough for it, all zeros and no disk space.
    std::filesystem::resize_file(path, 300'000'000);
    EXPECT_THAT(error_of([&] { SafetensorsFile{path}; }), StartsWith("data: ")) << claim;
  }
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 20'000) << "KiB";
}

TEST(SafetensorsReader, EmptyTensorsAreLegalAndAnEmptyRangeForOneElementIsNot) {
  const auto header = parse(file_of(R"({"a":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]},)"
                                    R"("b":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},)"
                                    R"("c":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                                    "1234"));
  EXPECT_EQ(header.tensors.size(), 3U);
  EXPECT_THAT(error_of([] { parse(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,0]}})")); }),
              HasSubstr("tensor \"a\": shape [1] of F32 needs 4 bytes"));
}

// Bits of an element by the format's list: 4, 6, 8, 16, 32, 64.
TEST(SafetensorsReader, EveryDtypeHasItsSize) {
  const std::map<std::string, std::uint64_t> bytes_of_8{
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [dtype, bytes] : bytes_of_8) EXPECT_EQ(size_bytes_of(dtype, {2, 4}), bytes) << dtype;
  EXPECT_EQ(size_bytes_of("F4", {3}), std::nullopt);
  EXPECT_EQ(size_bytes_of("F31", {3}), std::nullopt);
  EXPECT_EQ(size_bytes_of("F32", {-1, -1}), std::nullopt);
  const std::int64_t huge = std::int64_t{1} << 62U;
  EXPECT_EQ(size_bytes_of("F32", {huge, huge, 0}), std::nullopt);
  EXPECT_EQ(size_bytes_of("F32", {0, huge, huge}), 0U);
}

TEST(SafetensorsReader, NamesAGitLfsPointerAndAMissingFile) {
  const TemporaryFolder folder;
  write_file(folder.path / "w.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n");
  EXPECT_THAT(error_of([&] { SafetensorsFile{folder.path / "w.safetensors"}; }),
              AllOf(StartsWith("data: "), HasSubstr("w.safetensors is a Git LFS pointer")));
  EXPECT_THAT(error_of([&] { SafetensorsFile{folder.path / "absent.safetensors"}; }),
              AllOf(StartsWith("data: "), HasSubstr("absent.safetensors")));
}

// An official model has some 10^5 tensors; the header must not be searched once for each.
TEST(SafetensorsReader, ReadsManyTensorsQuickly) {
  std::string header = "{";
  constexpr int count = 100'000;
  for (int i = 0; i < count; ++i) {
    if (i > 0) header += ',';
    const auto entry = R"(.mlp.experts.weight":{"dtype":"U8","shape":[1],"data_offsets":[)";
    header += "\"model.layers." + std::to_string(i) + entry + std::to_string(i) + "," + std::to_string(i + 1) + "]}";
  }
  const auto parsed = parse(file_of(header + "}", std::string(count, 'x')));
  EXPECT_EQ(parsed.tensors.size(), std::size_t{count});
  EXPECT_EQ(parsed.tensors.back().name, "model.layers.99999.mlp.experts.weight");
}

TEST(SafetensorsWriter, WhatItWritesReadsBackToTheByteAndIsAligned) {
  const TemporaryFolder folder;
  const auto path = folder.path / "t.safetensors";
  const std::vector<char> flags{1, 0, 1};
  const std::vector<double> doubles{1.5, -0.0, std::numeric_limits<double>::quiet_NaN()};
  const std::vector<std::uint16_t> halves{0x3f80, 0xff80};
  const float scalar = 2.5F;
  const auto record = write_safetensors(path,
                                        {{"flags", "BOOL", {3}, flags.data(), 3},
                                         {"quote\"tab\t\xc3\xa9", "F64", {3}, doubles.data(), 24},
                                         {"halves", "BF16", {2, 1}, halves.data(), 4},
                                         {"", "F32", {}, &scalar, 4},
                                         {"none", "I64", {2, 0}, nullptr, 0}},
                                        {{"format", "pt"}, {"\xe5\x80\xa4", "line\nend"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(record.name, "t.safetensors");
  EXPECT_EQ(record.size_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(record.chunk_checksums, std::vector{xxh3_of(read_file(path))});
  EXPECT_EQ(file.metadata().at("\xe5\x80\xa4"), "line\nend");
  ASSERT_EQ(file.tensors().size(), 5U);
  EXPECT_EQ(file.tensors()[0].begin % 64, 0U);
  for (const auto& tensor : file.tensors()) {
    const auto width = size_bytes_of(tensor.dtype, {1}).value();
    EXPECT_EQ(tensor.begin % width, 0U) << tensor.name;
  }
  const auto bytes_of = [&](const char* name) { return std::string(file.bytes(*file.find(name))); };
  EXPECT_EQ(bytes_of("flags"), std::string(flags.data(), 3));
  EXPECT_EQ(bytes_of("quote\"tab\t\xc3\xa9"), std::string(reinterpret_cast<const char*>(doubles.data()), 24));
  EXPECT_EQ(bytes_of("halves"), std::string(reinterpret_cast<const char*>(halves.data()), 4));
  EXPECT_EQ(bytes_of(""), std::string(reinterpret_cast<const char*>(&scalar), 4));
  EXPECT_EQ(file.find("none")->shape, (std::vector<std::int64_t>{2, 0}));
}

TEST(SafetensorsWriter, ChecksumsAreThoseOfEach8MiBOfTheFile) {
  const TemporaryFolder folder;
  const auto path = folder.path / "big.safetensors";
  std::string data(20'000'001, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761U >> 24U);
  const auto size = static_cast<std::int64_t>(data.size());
  const auto record = write_safetensors(
      path, {{"x", "U8", {size - 5}, data.data(), data.size() - 5}, {"y", "U8", {5}, data.data(), 5}}, {});
  const auto bytes = read_file(path);
  std::vector<std::string> expected;
  for (std::size_t begin = 0; begin < bytes.size(); begin += 8'388'608) {
    expected.push_back(xxh3_of(std::string_view(bytes).substr(begin, 8'388'608)));
  }
  EXPECT_EQ(record.chunk_checksums.size(), 3U);
  EXPECT_EQ(record.chunk_checksums, expected);
  EXPECT_EQ(record.chunk_bytes, 8'388'608U);
}

// Test vectors of XXH3-128 with seed 0, from the specification of xxHash: the empty input.
TEST(SafetensorsWriter, TheChecksumIsXxh3With128Bits) { EXPECT_EQ(xxh3_of(""), "99aa06d3014798d86001c324468d497f"); }

TEST(SafetensorsWriter, RefusesWhatCouldNotBeReadBack) {
  const TemporaryFolder folder;
  const auto path = folder.path / "t.safetensors";
  const char byte = 1;
  const auto write = [&](const std::vector<TensorBytes>& tensors) {
    return error_of([&] { write_safetensors(path, tensors, {}); });
  };
  EXPECT_THAT(write({{"a", "U8", {1}, &byte, 1}, {"a", "U8", {1}, &byte, 1}}),
              HasSubstr("tensor \"a\": the name is taken"));
  EXPECT_THAT(write({{"__metadata__", "U8", {1}, &byte, 1}}), HasSubstr("the name is taken"));
  EXPECT_THAT(write({{"a", "F32", {1}, &byte, 1}}), HasSubstr("dtype F32 and shape [1] do not make 1 bytes"));
  EXPECT_THAT(write({{"a", "float32", {1}, &byte, 4}}), HasSubstr("dtype float32"));
  EXPECT_THAT(write({{"\xff", "U8", {1}, &byte, 1}}), StartsWith("internal: "));
}

TEST(SafetensorsWriter, AFullDiskIsAnError) {
  const std::string data(1 << 20, 'x');
  EXPECT_THAT(error_of([&] {
                write_safetensors("/dev/full", {{"x", "U8", {1 << 20}, data.data(), data.size()}}, {});
              }),
              AllOf(StartsWith("io: write /dev/full"), HasSubstr("No space left")));
}

}  // namespace
}  // namespace assay
