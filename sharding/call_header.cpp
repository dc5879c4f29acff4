#include "sharding/call_header.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>

namespace assay {
namespace {

/// "broadcast of 128 float from rank 0"
std::string describe(const CallHeader& header) {
  const auto kind = static_cast<CollectiveCall::Kind>(header.kind);
  std::string text = name_of(kind);
  if (kind == CollectiveCall::Kind::barrier) return text;
  std::string dtype = at::toString(static_cast<at::ScalarType>(header.dtype));
  std::transform(dtype.begin(), dtype.end(), dtype.begin(), [](unsigned char c) { return std::tolower(c); });
  text += " of " + std::to_string(header.num_elements) + " " + dtype;
  return kind == CollectiveCall::Kind::broadcast ? text + " from rank " + std::to_string(header.root) : text;
}

}  // namespace

CallHeader header_of(const CollectiveCall& call, std::int64_t sequence) {
  CallHeader header;
  header.sequence = sequence;
  header.kind = static_cast<std::int64_t>(call.kind);
  header.root = call.root;
  if (call.output.defined()) {
    header.dtype = static_cast<std::int64_t>(call.output.scalar_type());
    header.num_elements = call.output.numel();
  }
  return header;
}

std::string name_of(CollectiveCall::Kind kind) {
  switch (kind) {
    case CollectiveCall::Kind::all_gather:
      return "all_gather";
    case CollectiveCall::Kind::all_to_all:
      return "all_to_all";
    case CollectiveCall::Kind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveCall::Kind::broadcast:
      return "broadcast";
    case CollectiveCall::Kind::barrier:
      return "barrier";
  }
  return "unknown operation";
}

std::optional<std::string> difference_among(const std::vector<CallHeader>& headers) {
  const auto usual = std::max_element(headers.begin(), headers.end(), [&](const CallHeader& a, const CallHeader& b) {
    return std::count(headers.begin(), headers.end(), a) < std::count(headers.begin(), headers.end(), b);
  });
  const auto odd =
      std::find_if(headers.begin(), headers.end(), [&](const CallHeader& other) { return other != *usual; });
  if (odd == headers.end()) return std::nullopt;
  std::string usual_sequence;
  if (odd->sequence != usual->sequence) usual_sequence = " as its operation " + std::to_string(usual->sequence);
  return "rank " + std::to_string(odd - headers.begin()) + " calls " + describe(*odd) + " as its operation " +
         std::to_string(odd->sequence) + ", rank " + std::to_string(usual - headers.begin()) + " " + describe(*usual) +
         usual_sequence + ": the ranks do not run the same program";
}

}  // namespace assay
