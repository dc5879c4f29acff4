#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "harness/core/error.h"
#include "harness/core/json.h"

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace assay {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the library's limit

struct DtypeBits {
  std::string_view name;
  unsigned bits;
};

constexpr std::array<DtypeBits, 22> kDtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

const DtypeBits* find_dtype(std::string_view name) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& dtype) { return dtype.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

/// One entry of the header; every failure names the file and the tensor.
class EntryReader {
 public:
  EntryReader(const std::string& what, const std::string& name, const nlohmann::json& entry)
      : what_(what), name_(name), entry_(entry) {}

  TensorInfo read(std::uint64_t data_begin, std::uint64_t data_size) const {
    if (!entry_.is_object()) fail("its entry is no JSON object");
    for (const auto& [key, value] : entry_.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") fail("unknown key " + dump_json(key));
    }
    TensorInfo info{name_, dtype(), shape(), 0, 0};
    const auto& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) fail("data_offsets is not [begin, end]: " + offsets.dump());
    info.begin = whole_number(offsets[0], "data_offsets");
    info.end = whole_number(offsets[1], "data_offsets");
    if (info.end < info.begin) fail("data_offsets are reversed: " + offsets.dump());
    if (info.end > data_size) {
      fail("data_offsets " + offsets.dump() + " reach beyond the " + std::to_string(data_size) + " bytes of data");
    }
    const auto bytes = size_bytes_of(info.dtype, info.shape);
    if (!bytes) fail("shape " + field("shape").dump() + " of " + info.dtype + " has no size in whole 64-bit bytes");
    if (*bytes != info.size_bytes()) {
      fail("shape " + field("shape").dump() + " of " + info.dtype + " needs " + std::to_string(*bytes) +
           " bytes, data_offsets " + offsets.dump() + " hold " + std::to_string(info.size_bytes()));
    }
    info.begin += data_begin;
    info.end += data_begin;
    return info;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw Error(ErrorKind::data, what_ + ": tensor " + dump_json(name_) + ": " + reason);
  }

  const nlohmann::json& field(const char* key) const {
    const auto found = entry_.find(key);
    if (found == entry_.end()) fail(std::string(key) + " is missing");
    return *found;
  }

  std::uint64_t whole_number(const nlohmann::json& value, const std::string& key) const {
    if (!value.is_number_unsigned()) fail(key + " holds " + value.dump() + ", not a whole number of 0 to 2^64 - 1");
    return value.get<std::uint64_t>();
  }

  std::string dtype() const {
    const auto& value = field("dtype");
    if (!value.is_string() || find_dtype(value.get_ref<const std::string&>()) == nullptr) {
      fail("unknown dtype " + value.dump() + " (known: " + known_dtypes() + ")");
    }
    return value.get<std::string>();
  }

  std::vector<std::int64_t> shape() const {
    const auto& value = field("shape");
    if (!value.is_array()) fail("shape is no list: " + value.dump());
    std::vector<std::int64_t> sizes;
    for (const auto& size : value) {
      const auto number = whole_number(size, "shape");
      if (number > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        fail("shape holds " + size.dump() + ", above 2^63 - 1");
      }
      sizes.push_back(static_cast<std::int64_t>(number));
    }
    return sizes;
  }

  const std::string& what_;
  const std::string& name_;
  const nlohmann::json& entry_;
};

std::map<std::string, std::string> read_metadata(const nlohmann::json& value, const std::string& what) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;
  if (!value.is_object()) throw Error(ErrorKind::data, what + ": __metadata__ is no JSON object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      throw Error(ErrorKind::data, what + ": __metadata__ key " + dump_json(key) + " is no string");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

/// Sorted by their bytes, the tensors must follow each other from the end of the header to the end of the file.
void check_cover(const SafetensorsHeader& header, std::uint64_t file_size, const std::string& what) {
  std::uint64_t expected = header.data_begin;
  for (const auto& tensor : header.tensors) {
    if (tensor.begin != expected) {
      throw Error(ErrorKind::data, what + ": tensor " + dump_json(tensor.name) + ": its data begins at " +
                                       std::to_string(tensor.begin - header.data_begin) +
                                       ", the data before it ends at " + std::to_string(expected - header.data_begin) +
                                       (tensor.begin < expected ? " (overlap)" : " (hole)"));
    }
    expected = tensor.end;
  }
  if (expected != file_size) {
    throw Error(ErrorKind::data,
                what + ": " + std::to_string(file_size - expected) + " bytes after the last tensor belong to none");
  }
}

}  // namespace

std::optional<std::uint64_t> size_bytes_of(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  const auto* known = find_dtype(dtype);
  if (known == nullptr) return std::nullopt;
  std::uint64_t bits = 1;
  for (const auto size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bits, std::uint64_t{known->bits}, &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string known_dtypes() {
  std::string text;
  for (const auto& dtype : kDtypes) text += (text.empty() ? "" : ", ") + std::string(dtype.name);
  return text;
}

std::uint64_t safetensors_header_length(std::string_view head, std::uint64_t file_size, const std::string& what) {
  if (file_size == 0) throw Error(ErrorKind::data, what + " is empty");
  if (head.starts_with("version https://git-lfs.github.com/spec/")) {
    throw Error(ErrorKind::data,
                what + " is a Git LFS pointer, not the file it stands for; fetch it with `git lfs pull`");
  }
  if (file_size < kLengthBytes) {
    throw Error(ErrorKind::data,
                what + " has " + std::to_string(file_size) + " bytes; a safetensors file begins with 8");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), kLengthBytes);
  const auto claim = what + ": the header's length is given as " + std::to_string(length) + " bytes, ";
  if (length > kMaxHeaderBytes) throw Error(ErrorKind::data, claim + "above the format's limit of 100000000");
  if (length > file_size - kLengthBytes) {
    throw Error(ErrorKind::data, claim + "the file has only " + std::to_string(file_size - kLengthBytes) + " after it");
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view head, std::uint64_t file_size, const std::string& what) {
  const auto length = safetensors_header_length(head, file_size, what);
  ASSAY_CHECK(head.size() >= kLengthBytes + length);
  const auto text = head.substr(kLengthBytes, length);
  if (!text.starts_with('{')) throw Error(ErrorKind::data, what + ": the header is no JSON object");

  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  const auto entries = parse_large_json(text, what + ": header");
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(entry, what);
    } else {
      header.tensors.push_back(EntryReader(what, name, entry).read(header.data_begin, file_size - header.data_begin));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& left, const auto& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  check_cover(header, file_size, what);
  return header;
}

}  // namespace assay
