#include "harness/memory/packed_file.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/units.h"

namespace assay {
namespace {

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw Error(ErrorKind::data, name + ": " + what);
}

[[noreturn]] void fail_size(const std::string& name, std::size_t max_bytes) {
  fail(name, "holds more than " + format_bytes(static_cast<std::int64_t>(max_bytes)) + "; record fewer events");
}

/// One zlib stream that unpacks gzip.
class Inflater {
 public:
  Inflater() { ASSAY_CHECK(::inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK); }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream* operator->() { return &stream_; }
  z_stream* get() { return &stream_; }

 private:
  z_stream stream_{};
};

constexpr std::size_t kChunkBytes = 1 << 18;

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

}  // namespace

std::string unpack_gzip(std::string_view bytes, const std::string& name, std::size_t max_bytes) {
  if (!is_gzip(bytes)) {
    if (bytes.size() > max_bytes) fail_size(name, max_bytes);
    return std::string(bytes);
  }
  std::string text;
  const auto place = [&] {
    return " after " + std::to_string(text.size()) + " unpacked bytes, in line " +
           std::to_string(std::count(text.begin(), text.end(), '\n') + 1);
  };
  Inflater inflater;
  std::string chunk(kChunkBytes, '\0');
  while (true) {
    if (inflater->avail_in == 0) {
      const auto given = std::min<std::size_t>(bytes.size(), std::numeric_limits<uInt>::max());
      inflater->next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      inflater->avail_in = static_cast<uInt>(given);
      bytes.remove_prefix(given);
    }
    inflater->next_out = reinterpret_cast<Bytef*>(chunk.data());
    inflater->avail_out = static_cast<uInt>(chunk.size());
    const int code = ::inflate(inflater.get(), Z_NO_FLUSH);
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) fail(name, "the gzip data are damaged" + place());
    text.append(chunk, 0, chunk.size() - inflater->avail_out);
    if (text.size() > max_bytes) fail_size(name, max_bytes);
    if (code == Z_STREAM_END) {
      const std::string_view rest(reinterpret_cast<const char*>(inflater->next_in), inflater->avail_in);
      if (!is_gzip(rest)) return text;
      ASSAY_CHECK(::inflateReset(inflater.get()) == Z_OK);
    } else if (inflater->avail_in == 0 && inflater->avail_out > 0 && bytes.empty()) {
      fail(name, "the gzip data end early," + place() + "; the file was cut, copy it again");
    }
  }
}

std::string read_packed_file(const std::filesystem::path& path, std::size_t max_bytes) {
  const MappedFile file(path);
  if (file.bytes().empty()) fail(path.string(), "the file is empty");
  return unpack_gzip(file.bytes(), path.string(), max_bytes);
}

}  // namespace assay
