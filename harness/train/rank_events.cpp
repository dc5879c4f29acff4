#include "harness/train/rank_events.h"

#include <cstdlib>

#include "harness/core/files.h"
#include "harness/core/log.h"
#include "harness/memory/ledger_json.h"

namespace assay {
namespace {

std::filesystem::path event_file(const Job& job) {
  make_folders(job.folder / "events");
  return rank_event_file(job.folder, job.world.rank);
}

}  // namespace

RankEvents::RankEvents(const Job& job, const Clock& clock, const MemoryLedger& ledger)
    : clock_(clock),
      ledger_(ledger),
      writer_(event_file(job), job.world.rank, job.attempt),
      phase_start_(clock.wall_seconds()) {
  const char* heartbeat = std::getenv(kHeartbeatVariable);
  if (heartbeat != nullptr) heartbeat_ = std::make_unique<Heartbeat>(heartbeat);
  beat();
}

void RankEvents::write(std::string_view kind, const Json& fields) { writer_.write(kind, step_, fields); }

Json RankEvents::phase_fields(Phase phase) const {
  const auto index = static_cast<std::size_t>(phase);
  return {{"phase", name_of(phase)},
          {"seconds", phase_seconds_[index]},
          {"peak_allocated_bytes", ledger_.peak_by_phase()[index]}};
}

void RankEvents::end_phase() {
  const auto index = static_cast<std::size_t>(phase_);
  const double now = clock_.wall_seconds();
  phase_seconds_[index] += now - phase_start_;
  phase_start_ = now;
  if (phase_written_[index]) return;
  phase_written_[index] = true;
  write("phase", phase_fields(phase_));
}

void RankEvents::enter(Phase phase, std::int64_t step) {
  if (phase != phase_) end_phase();
  phase_ = phase;
  step_ = step;
  beat();
}

void RankEvents::beat() {
  if (heartbeat_) heartbeat_->beat(step_, phase_);
}

void RankEvents::error(const Error& error) noexcept {
  try {
    Json fields{{"error", name_of(error.kind())},
                {"message", error.what()},
                {"phase", name_of(phase_)},
                {"where", error.where()}};
    if (error.kind() == ErrorKind::memory && ledger_.out_of_memory()) {
      fields["memory"] = ledger_.out_of_memory()->to_json();
    }
    write("error", fields);
  } catch (const std::exception& failure) {
    log_warning(std::string("the error could not be written into the events: ") + failure.what());
  }
}

void RankEvents::step(const StepRecord& record, double save_seconds) {
  compute_seconds += record.compute_seconds;
  compute_cpu_seconds += record.compute_cpu_seconds;
  Json fields{{"learning_rate", record.learning_rate},
              {"tokens", record.tokens},
              {"real_tokens", record.tokens},
              {"loss_tokens", record.loss_tokens},
              {"loss_scale", record.loss_scale},
              {"overflowed", record.overflowed},
              {"skipped", record.skipped},
              {"cpu_seconds", record.cpu_seconds},
              {"step_seconds", record.step_seconds},
              {"data_seconds", record.data_seconds},
              {"forward_seconds", record.forward_seconds},
              {"backward_seconds", record.backward_seconds},
              {"recompute_seconds", record.recompute_seconds},
              {"communication_seconds", record.communication_seconds},
              {"optimizer_seconds", record.optimizer_seconds},
              {"save_seconds", save_seconds},
              {"peak_allocated_bytes", record.peak_allocated_bytes},
              {"peak_reserved_bytes", record.peak_reserved_bytes}};
  set_number(fields, "loss", record.loss);
  set_number(fields, "grad_norm", record.grad_norm);
  write("step", fields);
}

void RankEvents::finish_phases() {
  end_phase();
  for (std::size_t i = 0; i < kPhaseNames.size(); ++i) {
    if (phase_written_[i]) write("phase", phase_fields(static_cast<Phase>(i)));
  }
  const auto& allocator = ledger_.allocator();
  const auto& statistics = allocator.statistics();
  write("memory", {{"measured_allocated_bytes", ledger_.peak_bytes()},
                   {"by_category", bytes_by_name(ledger_.peak_by_category(), kMemoryCategoryNames)},
                   {"by_phase", bytes_by_name(ledger_.peak_by_phase(), kPhaseNames)},
                   {"measured_reserved_bytes", statistics.reserved.peak},
                   {"reserved_by", "the allocator model, told of every allocation of this rank"},
                   {"reserved_minus_allocated_bytes", statistics.reserved.peak - ledger_.peak_bytes()},
                   {"largest_free_block_bytes", allocator.largest_free_block_bytes()},
                   {"num_alloc_retries", statistics.num_alloc_retries},
                   {"device_used_bytes", nullptr},
                   {"device_used_bytes_reason", "a CPU has no memory of its own"}});
}

}  // namespace assay
