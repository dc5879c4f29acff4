#include "harness/memory/allocator_trace.h"

#include <cstddef>

#include "harness/memory/packed_file.h"

namespace assay {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

bool is_pickle(std::string_view bytes, const std::filesystem::path& path) {
  auto name = path.filename();
  if (name.extension() == ".gz") name = name.stem();
  return bytes.starts_with('\x80') || name.extension() == ".pickle" || name.extension() == ".pkl";
}

}  // namespace

AllocatorTrace read_allocator_trace(const std::filesystem::path& path) {
  auto bytes = read_packed_file(path, kMaxFileBytes);
  if (is_pickle(bytes, path)) return parse_memory_snapshot(std::move(bytes), path.string());
  return parse_text_trace(bytes, path.string());
}

}  // namespace assay
