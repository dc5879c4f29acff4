#include "harness/memory/ledger.h"

#include <algorithm>
#include <utility>

namespace assay {
namespace {

std::int64_t rounded(std::int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

std::int64_t& at(MemoryLedger::Bytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}

}  // namespace

bool MemoryLedger::fits(std::int64_t bytes) const {
  return capacity_bytes_ == 0 || allocated_ + rounded(bytes) <= capacity_bytes_;
}

MemoryLedger::Block MemoryLedger::allocate(std::int64_t bytes) {
  Block block{bytes, next_number_++, MemoryCategory::temporaries, false};
  const auto scope = MemoryScope::current();
  block.undecided = !scope && phase_ == Phase::forward;
  if (scope) block.category = *scope;
  if (phase_ == Phase::forward) {
    if (undecided_.empty()) first_undecided_ = block.number;
    undecided_.push_back({block.undecided ? bytes : 0, recording_ ? events_.size() : kNoEvent});
  }
  if (block.undecided) {
    undecided_bytes_ += rounded(bytes);
  } else {
    at(by_category_, block.category) += rounded(bytes);
  }
  allocated_ += rounded(bytes);
  ++num_events_;
  if (recording_) events_.push_back({bytes, block.category, phase_});
  note_peak();
  return block;
}

void MemoryLedger::release(const Block& block) {
  MemoryCategory category = block.category;
  if (block.undecided) {
    const bool same_forward = !undecided_.empty() && block.number >= first_undecided_;
    if (same_forward) {
      undecided_[block.number - first_undecided_].bytes = 0;
      undecided_bytes_ -= rounded(block.bytes);
    } else {
      category = MemoryCategory::activations;
    }
  }
  if (!block.undecided || category == MemoryCategory::activations) at(by_category_, category) -= rounded(block.bytes);
  allocated_ -= rounded(block.bytes);
  ++num_events_;
  if (recording_) events_.push_back({-block.bytes, category, phase_});
}

void MemoryLedger::set_phase(Phase phase) {
  if (phase_ == Phase::forward && phase != Phase::forward) decide_undecided();
  phase_ = phase;
  auto& phase_peak = peak_by_phase_[static_cast<std::size_t>(phase_)];
  phase_peak = std::max(phase_peak, allocated_);
}

void MemoryLedger::note_peak() {
  auto& phase_peak = peak_by_phase_[static_cast<std::size_t>(phase_)];
  phase_peak = std::max(phase_peak, allocated_);
  interval_peak_ = std::max(interval_peak_, allocated_);
  if (allocated_ <= peak_) return;
  peak_ = allocated_;
  peak_by_category_ = by_category_;
  peak_undecided_bytes_ = undecided_bytes_;
  peak_number_ = next_number_;
}

void MemoryLedger::decide_undecided() {
  std::int64_t survivors = 0;
  std::int64_t survivors_at_peak = 0;
  for (std::size_t i = 0; i < undecided_.size(); ++i) {
    if (undecided_[i].bytes == 0) continue;
    survivors += rounded(undecided_[i].bytes);
    if (first_undecided_ + i < peak_number_) survivors_at_peak += rounded(undecided_[i].bytes);
    if (undecided_[i].event != kNoEvent) events_[undecided_[i].event].category = MemoryCategory::activations;
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

std::int64_t MemoryLedger::take_interval_peak() { return std::exchange(interval_peak_, allocated_); }

}  // namespace assay
