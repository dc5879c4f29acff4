#include "checkpoint/rank_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>

#include "checkpoint/safetensors_header.h"
#include "harness/core/error.h"

namespace assay {
namespace {

constexpr const char* kStateKey = "rank_state";
constexpr std::size_t kMaxListed = 10;

/// Bytes of the file that go to one place in memory.
struct Piece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  char* to = nullptr;
};

void add_difference(std::string& text, std::size_t& count, const std::string& difference) {
  if (++count <= kMaxListed) text += "\n  " + difference;
}

/// The pieces in the order of the file; throws Error{recipe} that lists what does not match.
std::vector<Piece> match(const std::vector<TensorInfo>& tensors, const std::vector<TensorDestination>& destinations,
                         const std::string& what) {
  std::map<std::string_view, const TensorDestination*> open;
  for (const auto& destination : destinations) {
    if (!open.emplace(destination.name, &destination).second) {
      throw Error(ErrorKind::internal, "two destinations for tensor " + dump_json(destination.name));
    }
  }
  std::string text;
  std::size_t count = 0;
  std::vector<Piece> pieces;
  for (const auto& tensor : tensors) {
    const auto place = open.find(tensor.name);
    if (place == open.end()) {
      add_difference(text, count, "tensor " + dump_json(tensor.name) + " is in the file, this run has no place for it");
      continue;
    }
    const auto& destination = *place->second;
    open.erase(place);
    if (tensor.dtype != destination.dtype || tensor.shape != destination.shape) {
      add_difference(text, count,
                     "tensor " + dump_json(tensor.name) + " is " + tensor.dtype + " " + dump_json(tensor.shape) +
                         " in the file, " + destination.dtype + " " + dump_json(destination.shape) + " in this run");
    } else if (tensor.size_bytes() != destination.size_bytes) {
      throw Error(ErrorKind::internal, "the destination of tensor " + dump_json(tensor.name) + " has " +
                                           std::to_string(destination.size_bytes) + " bytes");
    } else {
      pieces.push_back({tensor.begin, tensor.end, static_cast<char*>(destination.data)});
    }
  }
  for (const auto& [name, destination] : open) {
    add_difference(text, count, "tensor " + dump_json(std::string(name)) + " of this run is not in the file");
  }
  if (count > kMaxListed) text += "\n  ... " + std::to_string(count - kMaxListed) + " more";
  if (count > 0) throw Error(ErrorKind::recipe, what + " does not fit this run:" + text);
  return pieces;
}

/// Gives a run of bytes to the pieces it overlaps. Called with consecutive runs; `next` is the first unfinished piece.
void deliver(std::string_view bytes, std::uint64_t position, const std::vector<Piece>& pieces, std::size_t& next) {
  const auto bytes_end = position + bytes.size();
  while (next < pieces.size() && pieces[next].begin < bytes_end) {
    const auto& piece = pieces[next];
    const auto begin = std::max(piece.begin, position);
    const auto end = std::min(piece.end, bytes_end);
    if (end > begin) std::memcpy(piece.to + (begin - piece.begin), bytes.data() + (begin - position), end - begin);
    if (piece.end > bytes_end) return;
    ++next;
  }
}

/// Reads on until the whole header is there.
std::string read_head(CheckedFileReader& file, const FileRecord& record, const std::string& what) {
  std::string head(file.next());
  const auto wanted = sizeof(std::uint64_t) + safetensors_header_length(head, record.size_bytes, what);
  while (head.size() < wanted) head += file.next();
  return head;
}

}  // namespace

FileRecord write_rank_file(const std::filesystem::path& path, const std::vector<TensorBytes>& tensors,
                           const Json& state, const std::function<void()>& on_chunk) {
  return write_safetensors(path, tensors, {{kStateKey, dump_json(state)}}, on_chunk);
}

Json read_rank_file(const std::filesystem::path& path, const FileRecord& record,
                    const std::vector<TensorDestination>& destinations, const std::function<void()>& on_chunk) {
  const auto what = path.string();
  CheckedFileReader file(path, record);
  const auto head = read_head(file, record, what);
  const auto header = parse_safetensors_header(head, record.size_bytes, what);
  const auto state = header.metadata.find(kStateKey);
  if (state == header.metadata.end()) throw Error(ErrorKind::data, what + ": its metadata has no " + kStateKey);
  auto parsed_state = parse_json(state->second, what + ": " + kStateKey);

  const auto pieces = match(header.tensors, destinations, what);
  std::size_t next = 0;
  deliver(head, 0, pieces, next);
  while (!file.at_end()) {
    const auto position = file.position();
    deliver(file.next(), position, pieces, next);
    if (on_chunk) on_chunk();
  }
  return parsed_state;
}

}  // namespace assay
