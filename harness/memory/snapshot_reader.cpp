#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "harness/core/error.h"
#include "harness/memory/allocator_trace.h"
#include "harness/memory/pickle_reader.h"
#include "harness/memory/trace_start.h"

// Memory snapshots of PyTorch: torch/csrc/cuda/Module.cpp and memory_snapshot.cpp say what is in them.

namespace assay {
namespace {

using Action = TraceEvent::Action;
using State = AllocatorSegment::State;
using Kind = PickleValue::Kind;

constexpr std::size_t kMaxKeys = 64;
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 24;
constexpr std::int64_t kMaxDevice = 1023;

constexpr std::array<std::pair<std::string_view, Action>, 8> kActions{{{"alloc", Action::allocate},
                                                                       {"free_requested", Action::begin_free},
                                                                       {"free_completed", Action::free},
                                                                       {"segment_alloc", Action::segment_allocate},
                                                                       {"segment_free", Action::segment_free},
                                                                       {"segment_map", Action::map},
                                                                       {"segment_unmap", Action::unmap},
                                                                       {"oom", Action::out_of_memory}}};

class SnapshotReader {
 public:
  SnapshotReader(std::string bytes, const std::string& name) : pickle_(std::move(bytes), name) {
    trace_.name = name;
    trace_.place_word = "byte";
  }

  AllocatorTrace read() {
    const auto& root = pickle_.root();
    if (root.kind != Kind::dict)
      pickle_.fail(root, "a memory snapshot is a dict with the keys segments and device_traces; this is none");
    const auto& device_traces = list_in(root, "device_traces");
    read_settings(root);
    const auto device = fullest_device(device_traces, list_in(root, "segments"));
    read_segments(list_in(root, "segments"), device);
    if (device < static_cast<std::int64_t>(device_traces.items().size()))
      read_events(*device_traces.items()[static_cast<std::size_t>(device)]);
    trace_.start = state_before(trace_);
    return std::move(trace_);
  }

 private:
  const PickleValue& member(const PickleValue& dict, std::string_view key) const {
    if (dict.kind != Kind::dict || dict.items().size() > 2 * kMaxKeys)
      pickle_.fail(dict, "a dict with the key " + std::string(key) + " is expected here");
    const auto* found = dict.find(key);
    if (found == nullptr) pickle_.fail(dict, "the key " + std::string(key) + " is missing");
    return *found;
  }

  const PickleValue& list_in(const PickleValue& dict, std::string_view key) const {
    const auto& list = member(dict, key);
    if (list.kind != Kind::list) pickle_.fail(dict, std::string(key) + " is no list");
    return list;
  }

  std::int64_t integer_in(const PickleValue& dict, std::string_view key, std::int64_t low, std::int64_t high) const {
    const auto& value = member(dict, key);
    const auto* number = value.kind == Kind::integer ? std::get_if<std::int64_t>(&value.data) : nullptr;
    if (number == nullptr) pickle_.fail(dict, std::string(key) + " is no whole number");
    if (*number < low || *number > high) {
      pickle_.fail(dict, std::string(key) + " " + std::to_string(*number) +
                             " is out of range, allowed: " + std::to_string(low) + " to " + std::to_string(high));
    }
    return *number;
  }

  std::int64_t bytes_in(const PickleValue& dict, std::string_view key) const {
    return integer_in(dict, key, 1, kMaxTraceBytes);
  }
  std::int64_t address_in(const PickleValue& dict, std::string_view key) const {
    return integer_in(dict, key, 0, kMaxTraceAddress);
  }
  std::int64_t stream_in(const PickleValue& dict) const { return integer_in(dict, "stream", 0, std::int64_t{1} << 62); }

  std::string_view text_in(const PickleValue& dict, std::string_view key) const {
    const auto& value = member(dict, key);
    if (value.kind != Kind::text) pickle_.fail(dict, std::string(key) + " is no text");
    return std::get<std::string_view>(value.data);
  }

  static bool is_true(const PickleValue* value) {
    return value != nullptr && value->kind == Kind::boolean && std::get<std::int64_t>(value->data) == 1;
  }

  void note(const std::string& sentence) { trace_.notes.push_back(sentence); }

  /// The settings as PyTorch resolved them; snapshots before 2.2 have none.
  void read_settings(const PickleValue& root) {
    const auto* settings = root.find("allocator_settings");
    if (settings == nullptr || settings->kind != Kind::dict) return note("the snapshot does not say its settings");
    if (settings->items().size() > 2 * kMaxKeys) pickle_.fail(*settings, "too many settings");
    auto& read = trace_.settings;
    for (const auto* key : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
      const auto* text = settings->find(key);
      if (trace_.alloc_conf.empty() && text != nullptr && text->kind == Kind::text)
        trace_.alloc_conf = std::get<std::string_view>(text->data);
    }
    read.expandable_segments = is_true(settings->find("expandable_segments"));
    if (const auto* split = settings->find("max_split_size"); split != nullptr && split->kind == Kind::integer) {
      const auto bytes = std::get<std::int64_t>(split->data);
      if (bytes > 0 && bytes <= kMaxTraceInUse) read.max_split_size_bytes = bytes;
    }
    const auto* threshold = settings->find("garbage_collection_threshold");
    if (threshold != nullptr && threshold->kind == Kind::real) {
      const auto value = std::get<double>(threshold->data);
      if (value > 0 && value < 1) read.garbage_collection_threshold = value;
    }
    read_divisions(settings->find("roundup_power2_divisions"));
  }

  /// A dict: the number of divisions for each power of two. The model knows one number.
  void read_divisions(const PickleValue* divisions) {
    if (divisions == nullptr) return;
    std::set<std::int64_t> values;
    const auto& items = divisions->items();
    for (std::size_t i = 1; i < std::min(items.size(), 2 * kMaxKeys); i += 2) {
      if (items[i]->kind == Kind::integer) values.insert(std::get<std::int64_t>(items[i]->data));
    }
    if (values.size() > 1) return note("roundup_power2_divisions that differ by size are not modelled");
    if (values.empty() || *values.begin() <= 1) return;
    if (!std::has_single_bit(static_cast<std::uint64_t>(*values.begin())))
      pickle_.fail(*divisions, "roundup_power2_divisions is no power of two");
    trace_.settings.roundup_power2_divisions = std::min(*values.begin(), std::int64_t{1} << 20);
  }

  /// The one with the most events; without any, the one with the most segments.
  std::int64_t fullest_device(const PickleValue& traces, const PickleValue& segments) {
    if (traces.items().size() > kMaxDevice + 1) pickle_.fail(traces, "more than 1024 devices");
    std::map<std::int64_t, std::pair<std::size_t, std::size_t>> weight;
    for (std::size_t i = 0; i < traces.items().size(); ++i) {
      const auto& events = *traces.items()[i];
      if (events.kind != Kind::list) pickle_.fail(traces, "device_traces holds something that is no list");
      if (!events.items().empty()) weight[static_cast<std::int64_t>(i)].first = events.items().size();
    }
    for (const auto* segment : segments.items()) ++weight[device_of(*segment)].second;
    if (weight.empty()) return 0;
    const auto fullest = std::max_element(weight.begin(), weight.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (weight.size() > 1) {
      note("the snapshot holds " + std::to_string(weight.size()) + " devices; this is device " +
           std::to_string(fullest->first) + ", which has the most events");
    }
    return fullest->first;
  }

  std::int64_t device_of(const PickleValue& segment) const { return integer_in(segment, "device", 0, kMaxDevice); }

  void read_segments(const PickleValue& segments, std::int64_t device) {
    std::set<std::int64_t> addresses;
    for (const auto* value : segments.items()) {
      if (device_of(*value) != device) continue;
      AllocatorSegment segment;
      segment.address = address_in(*value, "address");
      segment.bytes = bytes_in(*value, "total_size");
      segment.stream = stream_in(*value);
      segment.small = text_in(*value, "segment_type") == "small";
      segment.expandable = is_true(value->find("is_expandable"));
      // Before its blocks are read: a list of one segment many times over would never end.
      if (!addresses.insert(segment.address).second) pickle_.fail(*value, "a second segment at the same address");
      if (is_private(value->find("segment_pool_id")) && !std::exchange(private_pools_, true))
        note("private pools (CUDA graphs) are not modelled: their blocks count as of the common pools");
      read_blocks(*value, segment);
      trace_.end.push_back(std::move(segment));
    }
    std::sort(trace_.end.begin(), trace_.end.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  }

  static bool is_private(const PickleValue* pool) {
    if (pool == nullptr) return false;
    return std::any_of(pool->items().begin(), pool->items().end(), [](const PickleValue* part) {
      return part->kind == Kind::integer && std::get<std::int64_t>(part->data) != 0;
    });
  }

  void read_blocks(const PickleValue& value, AllocatorSegment& segment) {
    auto address = segment.address;
    for (const auto* block : list_in(value, "blocks").items()) {
      const auto bytes = bytes_in(*block, "size");
      if (++num_blocks_ > kMaxBlocks) pickle_.fail(value, "more than 2^24 blocks");
      if (address + bytes > segment.address + segment.bytes) pickle_.fail(*block, "this block ends behind its segment");
      const auto state_name = text_in(*block, "state");
      const auto state = state_name == "active_allocated" ? State::allocated
                         : state_name == "inactive"       ? State::free
                                                          : State::waiting;
      const auto requested = state == State::free ? 0 : integer_in(*block, "requested_size", 0, bytes);
      segment.blocks.push_back({address, bytes, requested, state});
      address += bytes;
    }
    if (address != segment.address + segment.bytes) pickle_.fail(value, "the blocks of this segment do not fill it");
  }

  void read_events(const PickleValue& events) {
    trace_.num_events = static_cast<std::int64_t>(events.items().size());
    std::map<std::string_view, std::int64_t> unknown;
    bool releasing = false;
    for (const auto* value : events.items()) {
      const auto name = text_in(*value, "action");
      const auto* action =
          std::find_if(kActions.begin(), kActions.end(), [&](const auto& known) { return known.first == name; });
      if (action == kActions.end()) {
        if (name != "snapshot") ++unknown[name.substr(0, 40)];
        continue;
      }
      TraceEvent event{action->second, 0, bytes_in(*value, "size"), stream_in(*value), value->offset};
      if (event.action != Action::out_of_memory) event.address = address_in(*value, "addr");
      // The allocator gives back in runs, and a run is all that is free: by empty_cache(), or because the device is
      // full.
      const bool released = event.action == Action::segment_free || event.action == Action::unmap;
      if (released && !releasing) trace_.events.push_back({.action = Action::empty_cache, .place = value->offset});
      releasing = released;
      trace_.events.push_back(event);
      if (unknown.size() > kMaxKeys) pickle_.fail(*value, "more kinds of events than any PyTorch has");
    }
    for (const auto& [name, count] : unknown)
      note(std::to_string(count) + " events of kind " + std::string(name) + " are passed over");
  }

  Pickle pickle_;
  AllocatorTrace trace_;
  bool private_pools_ = false;
  std::int64_t num_blocks_ = 0;
};

}  // namespace

AllocatorTrace parse_memory_snapshot(std::string bytes, const std::string& name) {
  return SnapshotReader(std::move(bytes), name).read();
}

}  // namespace assay
