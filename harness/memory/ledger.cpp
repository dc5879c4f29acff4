#include "harness/memory/ledger.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace assay {
namespace {

std::int64_t& at(MemoryLedger::Bytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

}  // namespace

std::optional<MemoryLedger::Block> MemoryLedger::allocate(std::int64_t bytes) {
  const bool refused = num_events_ >= refused_at_;
  if (refused) refused_at_ = std::numeric_limits<std::int64_t>::max();
  const auto id = refused ? std::nullopt : allocator_.allocate(bytes);
  if (!id) {
    note_refusal(bytes);
    return std::nullopt;
  }
  const std::int64_t block_bytes = allocator_.block_bytes(*id);
  Block block{bytes,
              next_number_++,
              *id,
              recording_ ? static_cast<std::int32_t>(events_.size()) : -1,
              MemoryCategory::temporaries,
              false};
  const auto scope = MemoryScope::current();
  block.undecided = !scope && phase_ == Phase::forward;
  if (scope) block.category = *scope;
  if (phase_ == Phase::forward) {
    if (undecided_.empty()) first_undecided_ = block.number;
    undecided_.push_back({block.undecided ? block_bytes : 0, block.event});
  }
  if (block.undecided) {
    undecided_bytes_ += block_bytes;
  } else {
    at(by_category_, block.category) += block_bytes;
  }
  allocated_ += block_bytes;
  ++num_events_;
  if (recording_) {
    events_.push_back({bytes, block.category, phase_});
    origins_.push_back({block_bytes, operation_, unit_});
  }
  note_peak();
  if (keeping_history_) note_in_history(AllocationHistory::Action::allocate, block);
  return block;
}

void MemoryLedger::release(const Block& block) {
  const std::int64_t block_bytes = allocator_.block_bytes(block.id);
  if (keeping_history_) note_in_history(AllocationHistory::Action::free, block);
  allocator_.free(block.id);
  MemoryCategory category = block.category;
  if (block.undecided) {
    const bool same_forward = !undecided_.empty() && block.number >= first_undecided_;
    if (same_forward) {
      undecided_[block.number - first_undecided_].bytes = 0;
      undecided_bytes_ -= block_bytes;
    } else {
      category = MemoryCategory::activations;
    }
  }
  if (!block.undecided || category == MemoryCategory::activations) at(by_category_, category) -= block_bytes;
  allocated_ -= block_bytes;
  ++num_events_;
  if (!recording_) return;
  if (block.event >= 0)
    origins_[static_cast<std::size_t>(block.event)].released_by = static_cast<std::int32_t>(events_.size());
  events_.push_back({-block.bytes, category, phase_});
  origins_.push_back({});
}

void MemoryLedger::set_phase(Phase phase) {
  if (phase_ == Phase::forward && phase != Phase::forward) decide_undecided();
  phase_ = phase;
  label_.reset();
  auto& phase_peak = peak_by_phase_[static_cast<std::size_t>(phase_)];
  phase_peak = std::max(phase_peak, allocated_);
}

void MemoryLedger::note_peak() {
  auto& phase_peak = peak_by_phase_[static_cast<std::size_t>(phase_)];
  phase_peak = std::max(phase_peak, allocated_);
  interval_peak_.allocated_bytes = std::max(interval_peak_.allocated_bytes, allocated_);
  interval_peak_.reserved_bytes = std::max(interval_peak_.reserved_bytes, allocator_.statistics().reserved.current);
  if (allocated_ <= peak_) return;
  peak_ = allocated_;
  peak_by_category_ = by_category_;
  peak_undecided_bytes_ = undecided_bytes_;
  peak_number_ = next_number_;
  peak_event_ = static_cast<std::int32_t>(events_.size());
}

void MemoryLedger::decide_undecided() {
  std::int64_t survivors = 0;
  std::int64_t survivors_at_peak = 0;
  for (std::size_t i = 0; i < undecided_.size(); ++i) {
    if (undecided_[i].bytes == 0) continue;
    survivors += undecided_[i].bytes;
    if (first_undecided_ + i < peak_number_) survivors_at_peak += undecided_[i].bytes;
    if (undecided_[i].event >= 0)
      events_[static_cast<std::size_t>(undecided_[i].event)].category = MemoryCategory::activations;
  }
  at(by_category_, MemoryCategory::activations) += survivors;
  if (peak_undecided_bytes_ > 0) {
    at(peak_by_category_, MemoryCategory::activations) += survivors_at_peak;
    at(peak_by_category_, MemoryCategory::temporaries) += peak_undecided_bytes_ - survivors_at_peak;
    peak_undecided_bytes_ = 0;
  }
  undecided_bytes_ = 0;
  undecided_.clear();
}

void MemoryLedger::set_operation(const char* name) {
  operation_ = name;
  label_.reset();
}

void MemoryLedger::set_unit(int unit) {
  unit_ = unit;
  label_.reset();
}

void MemoryLedger::keep_history(std::size_t max_entries) {
  history_.emplace(max_entries);
  keeping_history_ = true;
  allocator_.set_segment_listener(
      [this](const SegmentEvent& event) { history_->add(event, allocator_.statistics(), history_label()); });
}

std::uint32_t MemoryLedger::history_label() {
  if (!label_) {
    std::string text(name_of(phase_));
    if (operation_ != nullptr) text += ": " + std::string(operation_);
    if (const auto unit = unit_name(unit_); !unit.empty()) text += ", " + unit;
    label_ = history_->label(text);
  }
  return *label_;
}

void MemoryLedger::note_in_history(AllocationHistory::Action action, const Block& block) {
  AllocationHistory::Entry entry;
  entry.action = action;
  entry.label = history_label();
  entry.address = allocator_.address(block.id);
  entry.bytes = block.bytes;
  entry.allocated_bytes =
      allocated_ - (action == AllocationHistory::Action::free ? allocator_.block_bytes(block.id) : 0);
  entry.reserved_bytes = allocator_.statistics().reserved.current;
  history_->add(entry);
}

void MemoryLedger::note_refusal(std::int64_t bytes) {
  OutOfMemory& state = out_of_memory_.emplace();
  state.requested_bytes = bytes;
  state.phase = phase_;
  state.unit = unit_name(unit_);
  if (operation_ != nullptr) state.operation = operation_;
  state.by_category = by_category_;
  at(state.by_category, MemoryCategory::activations) += undecided_bytes_;
  state.allocated_bytes = allocated_;
  state.reserved_bytes = allocator_.statistics().reserved.current;
  state.capacity_bytes = allocator_.settings().capacity_bytes;
  state.largest_free_block_bytes = allocator_.largest_free_block_bytes();
  state.segments = allocator_.segments();
  if (!keeping_history_) return;
  keeping_history_ = false;
  allocator_.set_segment_listener({});
  AllocationHistory::Entry entry;
  entry.action = AllocationHistory::Action::out_of_memory;
  entry.label = history_label();
  entry.address = state.capacity_bytes - state.reserved_bytes;
  entry.bytes = bytes;
  entry.allocated_bytes = state.allocated_bytes;
  entry.reserved_bytes = state.reserved_bytes;
  history_->add(entry);
}

std::string MemoryLedger::unit_name(int unit) const {
  const auto place = static_cast<std::size_t>(unit);
  return unit >= 0 && place < unit_names_.size() ? unit_names_[place] : "";
}

std::vector<AliveBlock> MemoryLedger::largest_at_peak(std::size_t most) const {
  using Key = std::tuple<std::int64_t, MemoryCategory, Phase, std::string_view, int>;
  std::map<Key, AliveBlock> alike;
  for (std::size_t i = 0; i < static_cast<std::size_t>(peak_event_); ++i) {
    const Origin& origin = origins_[i];
    if (origin.block_bytes == 0 || origin.released_by < peak_event_) continue;
    const auto& event = events_[i];
    const std::string_view name = origin.operation != nullptr ? origin.operation : "";
    const auto [place, added] = alike.try_emplace(
        {origin.block_bytes, event.category, event.phase, name, origin.unit},
        AliveBlock{origin.block_bytes, event.category, event.phase, origin.operation, unit_name(origin.unit), 1});
    if (!added) ++place->second.count;
  }
  std::vector<AliveBlock> blocks;
  for (const auto& entry : alike) blocks.push_back(entry.second);
  std::stable_sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (blocks.size() > most) blocks.resize(most);
  return blocks;
}

MemoryLedger::IntervalPeak MemoryLedger::take_interval_peak() {
  return std::exchange(interval_peak_, {allocated_, allocator_.statistics().reserved.current});
}

}  // namespace assay
