#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/heartbeat.h"
#include "harness/memory/ledger.h"
#include "harness/train/job.h"
#include "harness/train/trainer.h"

namespace assay {

/// Writes the events of one rank and keeps its heartbeat; fields are in harness/core/event.h.
class RankEvents {
 public:
  /// Opens <folder>/events/rank_<rank>.jsonl and the heartbeat file the launcher named, if any.
  RankEvents(const Job& job, const Clock& clock, const MemoryLedger& ledger);

  void write(std::string_view kind, const Json& fields);

  /// A phase of this step begins (0 before the first): beats, and when a phase ends for the first time writes its
  /// event.
  void enter(Phase phase, std::int64_t step);
  Phase phase() const { return phase_; }

  /// Tells the launcher that this rank goes on: within what may take longer than parallel.timeout_seconds as a whole.
  /// Costs three stores into memory.
  void beat();

  /// `save_seconds`: of the save that followed the step.
  void step(const StepRecord& record, double save_seconds);

  /// Writes the error event. Never throws: what went wrong must not be hidden by a disk that is full.
  void error(const Error& error) noexcept;

  /// The last phase ends too; writes all phases with their whole seconds, and the memory event.
  void finish_phases();

  double compute_seconds = 0;  ///< of all steps of this attempt
  double compute_cpu_seconds = 0;

 private:
  void end_phase();
  Json phase_fields(Phase phase) const;

  const Clock& clock_;
  const MemoryLedger& ledger_;
  EventWriter writer_;
  std::unique_ptr<Heartbeat> heartbeat_;
  std::int64_t step_ = 0;
  Phase phase_ = Phase::load;
  double phase_start_;
  std::array<double, kPhaseNames.size()> phase_seconds_{};
  std::array<bool, kPhaseNames.size()> phase_written_{};
};

}  // namespace assay
