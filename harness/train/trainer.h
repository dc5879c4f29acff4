#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/core/clock.h"
#include "harness/core/memory_scope.h"
#include "harness/device/device.h"
#include "harness/memory/ledger.h"
#include "harness/recipe/recipe.h"
#include "harness/train/loss_scaler.h"
#include "harness/train/row_source.h"
#include "harness/train/step_batch.h"
#include "model/transformer.h"
#include "sharding/communicator.h"
#include "sharding/sharded_adamw.h"
#include "sharding/sharded_units.h"

namespace assay {

/// What differs between a run and a dry run. All must outlive the trainer.
struct TrainerParts {
  Device& device;
  Communicator& communicator;
  const Clock& clock;
  MemoryLedger& ledger;
  const RowSource& rows;
  /// Told of every change of phase and the step in work (0 before the first; a step keeps its number while it is
  /// evaluated and saved). May be empty.
  std::function<void(Phase, std::int64_t step)> on_phase;
  /// Told within a phase, at every unit: the process goes on. May be empty. Called on the thread that runs forward or
  /// backward.
  std::function<void()> on_unit = {};
};

/// One optimizer step as the step event has it.
struct StepRecord {
  std::int64_t step = 0;  ///< 1 is the first
  double loss = 0;
  double grad_norm = 0;  ///< before clipping
  double loss_scale = 1;
  double learning_rate = 0;
  std::int64_t tokens = 0;
  std::int64_t loss_tokens = 0;
  bool overflowed = false;  ///< fp16 gradients overflowed under this loss scale
  bool skipped = false;     ///< overflowed, or no trained token in the whole global batch: nothing was updated
  int stop_signal = 0;      ///< a signal that some rank received; all ranks stop after this step
  double cpu_seconds = 0;
  double step_seconds = 0;
  double data_seconds = 0;
  double forward_seconds = 0;        ///< without waiting for communication, as backward and optimizer
  double backward_seconds = 0;       ///< with recomputation
  double recompute_seconds = 0;      ///< of checkpointed blocks; the time cost of activation checkpointing
  double communication_seconds = 0;  ///< waiting for it; what runs beside computation is not seen here
  double optimizer_seconds = 0;
  double compute_seconds = 0;      ///< forward, backward and optimizer
  double compute_cpu_seconds = 0;  ///< CPU seconds of the same
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t peak_reserved_bytes = 0;
};

struct EvalRecord {
  double loss = 0;
  std::int64_t loss_tokens = 0;
  double seconds = 0;
};

/// Where a job is: what a checkpoint keeps beside tensors.
struct Progress {
  std::int64_t step = 0;     ///< optimizer steps done, skipped ones included
  std::int64_t samples = 0;  ///< samples used by all ranks so far
  std::int64_t skipped_steps = 0;
  LossScaler::State loss_scaler;
  bool operator==(const Progress&) const = default;
};

/// A tensor of the training state; a checkpoint writes it and reads it back in place.
struct StateTensor {
  std::string name;
  at::Tensor tensor;
};

/// One rank of a training job: model, sharded units, optimizer, and the step over them. Builds everything in its
/// constructor, in one order, on the device; the same object runs on the CPU and as a dry run.
class Trainer {
 public:
  /// Allocates parameters, gradients and moments; parameters are zero until initialize_parameters() or a load.
  Trainer(const Recipe& recipe, const ModelConfig& config, TrainerParts parts);

  /// Collective: sets the parameters as transformers initializes them, from the recipe's seed: equal on all ranks.
  void initialize_parameters();

  /// Writes the values of one parameter, of any float dtype. publish_parameters() must follow.
  void write_parameter(std::size_t unit, std::size_t parameter, const at::Tensor& values);

  /// Collective: parameters that were written are what the network reads.
  void publish_parameters() { units_.publish(); }

  /// Collective: one optimizer step. `stop_signal` (may be empty) gives 0 or a signal this process received; it is
  /// asked as late as the ranks can still agree. If a loss or gradient is not finite (in fp16, a gradient only at the
  /// lowest loss scale) nothing is updated, and all ranks throw the same sentence with step, rank and the first tensor:
  /// that rank Error{numeric}, the others Error{communication}. After any other error, out of memory above all, the
  /// next step starts from a clean state.
  StepRecord step(const std::function<int()>& stop_signal = {});

  /// Collective: loss over all samples of `rows` (at most kMostEvalMicroSteps micro-steps), without gradients; leaves
  /// the training state as it was.
  EvalRecord evaluate(const RowSource& rows);

  /// This rank's part of parameters and moments, and its random state. Views: writing into them restores the state;
  /// finish_restore() must follow.
  std::vector<StateTensor> state_tensors();

  /// Collective: after state_tensors() were filled: makes whole what the ranks hold in parts and sets the counters.
  void finish_restore(const Progress& progress);

  /// XXH3-128 of what this rank owns of masters and moments, and of the counters, in hexadecimal.
  std::string state_hash() const;

  /// The same of the masters alone.
  std::string parameters_hash() const;

  /// Starts a phase; the trainer does so itself within step() and evaluate().
  void enter(Phase phase);

  Transformer& model() { return model_; }
  const Progress& progress() const { return progress_; }

  static constexpr std::int64_t kMostEvalMicroSteps = 8;

 private:
  struct Summary;
  class Hooks;
  void accumulate_gradients(const StepBatch& batch, const at::Tensor& loss, StepRecord& record);
  Summary exchange_summary(const at::Tensor& loss, int stop_signal);
  [[noreturn]] void fail_not_finite(const Summary& summary);
  void update(const Summary& summary, StepRecord& record);
  template <class Work>
  void timed(double& seconds, double& cpu_seconds, Work work);

  Recipe recipe_;
  TrainerParts parts_;
  BatchShape batch_shape_;
  Transformer model_;
  ShardedUnits units_;
  ShardedAdamW optimizer_;
  LossScaler scaler_;
  at::Generator generator_;  ///< this rank's own random stream; kept and saved for what draws from it (dropout)
  at::Tensor random_state_;  ///< its state as bytes, while a checkpoint is written or read
  Progress progress_;
  std::int64_t step_in_work_ = 0;
};

}  // namespace assay
