#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "harness/core/files.h"
#include "harness/core/json.h"

namespace assay {

/// Appends events to one file, one JSON object a line: all that a process tells the outside. Each line is one write, so
/// a process that is killed leaves whole lines; what a full disk or a power cut left of one is removed before the next.
/// Kinds and fields:
///
/// - run: at the start of an attempt: "job", "pid", "host", "world_size", "device", "backend", "num_threads",
///   "parameters", "trainable_parameters", "model_flops_per_token", "flops_convention", "versions", "recipe_hash",
///   "resumed_from" (checkpoint folder or null), "state_hash" and "parameters_hash" (after load or restore; of what
///   this rank owns), "param_dtype" (fp32, bf16 or fp16: of the parameters as they are in memory, not as asked),
///   "state_bytes_per_parameter" (of this rank: weights, gradients, masters and moments)
/// - option: "name", "asked", "used": a setting that was decided while running, e.g. the attention kernel
/// - phase: "phase" (load, restore, save, train, or a name of Phase), "seconds", "peak_allocated_bytes": it ended
/// - step: as in the contract, and "real_tokens" (of the whole global batch, without padding), "loss_scale",
///   "overflowed" (fp16 gradients were not finite under that scale: skipped), "recompute_seconds" (part of backward,
///   for activation checkpointing). "step_seconds" is the wall time from loading the batches to the end of the update,
///   without evaluation and "save_seconds"; forward, backward and optimizer seconds are without waiting for
///   communication
/// - eval: "loss", "tokens", "seconds"
/// - memory: at the end of an attempt: "measured_allocated_bytes", "measured_reserved_bytes", "reserved_by",
///   "reserved_minus_allocated_bytes" (of the peaks), "largest_free_block_bytes" and "num_alloc_retries" (now),
///   "by_category", "by_phase", and null fields with reasons
/// - checkpoint: "path", "saved_step", "seconds", "bytes" (written by this rank), "reason" (interval, end, signal); or
///   "restored": true, "path", "restored_step", "seconds"
/// - collective: "operation", "bytes", "elements", "num_wrong", "seconds", "max_abs_error", "device", "gpu",
///   "memory_bytes"
/// - check: a measurement that a stage made itself: "name", "measured", ...
/// - error: "error" (kind), "message", "phase", "where" (in the source); out of device memory also "memory": what was
///   asked for, the device as it was
/// - end: "exit_code", "stopped_by" (null or signal), "state_hash" (of parameters, optimizer state, counters),
///   "parameters_hash", "gemm_gflops" (for each CPU second), "compute_seconds" (wall time of this attempt's steps
///   without waits for data and communication), "compute_cpu_seconds", "samples_used", "samples_unused"
///
/// A launcher (rank -1) writes for each attempt: run; error with "failed_rank" for each failure; end "exit_code",
/// "interrupted_by" (null or signal), "seconds", "root_cause" (null or a failure); a failure is "rank", "host", "pid",
/// "exit_code", "signal", "phase", "step", "reason", "error" (kind), "message", "time", "sentence" (all of it in
/// words). And check "name": "planned_kill", "victim", "signal" before a rank is killed on purpose.
class EventWriter {
 public:
  /// Opens for appending, after the last whole line; creates the file. Throws Error{io}. `rank` is -1 for the launcher.
  EventWriter(const std::filesystem::path& path, int rank, int attempt);

  /// Writes {"kind", "time", "rank", "step", "attempt", ...fields}. Thread-safe by one write. Throws Error{io}.
  void write(std::string_view kind, std::int64_t step, const Json& fields);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  int rank_;
  int attempt_;
};

/// Where a rank keeps its events: <job folder>/events/rank_00000.jsonl.
std::filesystem::path rank_event_file(const std::filesystem::path& job_folder, int rank);

/// What a rank that ran out of device memory leaves beside them: <job folder>/memory_snapshot_rank_00000.pickle for
/// PyTorch's memory viewer, and <job folder>/trace_rank_00000.json, a Chrome trace.
std::filesystem::path memory_snapshot_file(const std::filesystem::path& job_folder, int rank);
std::filesystem::path memory_trace_file(const std::filesystem::path& job_folder, int rank);

/// All whole events of a file, in order; a last line cut short by a kill is left out, any other bad line throws
/// Error{data}. A missing file is an empty list.
std::vector<Json> read_events(const std::filesystem::path& path);

}  // namespace assay
