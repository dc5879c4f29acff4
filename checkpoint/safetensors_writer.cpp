#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "harness/core/error.h"
#include "harness/core/json.h"

namespace assay {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kLengthBytes = 8;

std::uint64_t element_bytes(const TensorBytes& tensor) { return size_bytes_of(tensor.dtype, {1}).value_or(1); }

void check(const std::vector<TensorBytes>& tensors, const std::string& what) {
  std::set<std::string> names{"__metadata__"};
  for (const auto& tensor : tensors) {
    const auto place = what + ": tensor " + dump_json(tensor.name) + ": ";
    if (!names.insert(tensor.name).second) throw Error(ErrorKind::internal, place + "the name is taken");
    const auto bytes = size_bytes_of(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.size_bytes) {
      throw Error(ErrorKind::internal, place + "dtype " + tensor.dtype + " and shape " + dump_json(tensor.shape) +
                                           " do not make " + std::to_string(tensor.size_bytes) + " bytes");
    }
  }
}

/// Strict where dump_json would replace what is not UTF-8: a changed name would not be found again.
std::string exact_json(const Json& value, const std::string& what) {
  try {
    return value.dump();
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::internal, what + ": " + error.what());
  }
}

/// The length and the JSON, padded with spaces. Put together as text: a Json object searches all its keys at every
/// insertion.
std::string header_of(const std::vector<const TensorBytes*>& tensors,
                      const std::map<std::string, std::string>& metadata, const std::string& what) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + exact_json(metadata, what);
  std::uint64_t offset = 0;
  for (const auto* tensor : tensors) {
    const Json entry{
        {"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {offset, offset + tensor->size_bytes}}};
    if (text.size() > 1) text += ',';
    text += exact_json(tensor->name, what) + ":" + exact_json(entry, what);
    offset += tensor->size_bytes;
  }
  text += "}";
  while ((kLengthBytes + text.size()) % kAlignment != 0) text += ' ';
  std::string length(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

}  // namespace

FileRecord write_safetensors(const std::filesystem::path& path, const std::vector<TensorBytes>& tensors,
                             const std::map<std::string, std::string>& metadata,
                             const std::function<void()>& on_chunk) {
  check(tensors, path.string());
  std::vector<const TensorBytes*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* left, const auto* right) { return element_bytes(*left) > element_bytes(*right); });
  const auto header = header_of(order, metadata, path.string());
  CheckedFileWriter file(path, on_chunk);
  file.write(header.data(), header.size());
  for (const auto* tensor : order) file.write(tensor->data, tensor->size_bytes);
  return file.finish();
}

}  // namespace assay
