#include "harness/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "harness/core/error.h"
#include "harness/core/units.h"
#include "harness/train/not_finite.h"
#include "harness/train/random.h"
#include "harness/train/schedule.h"
#include "harness/train/strategy.h"
#include "sharding/gradient_norm.h"

namespace assay {
namespace {

// For what is not differentiated.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// While it lives, the network tells these hooks, and at every unit also `on_unit` (may be empty).
class HooksScope final : public UnitHooks {
 public:
  HooksScope(Transformer& model, UnitHooks& hooks, const std::function<void()>& on_unit)
      : model_(model), hooks_(hooks), on_unit_(on_unit) {
    model.set_hooks(this);
  }
  ~HooksScope() override { model_.set_hooks(nullptr); }
  HooksScope(const HooksScope&) = delete;
  HooksScope& operator=(const HooksScope&) = delete;

  void before_forward(std::size_t unit) override {
    if (on_unit_) on_unit_();
    hooks_.before_forward(unit);
  }
  void after_forward(std::size_t unit, const at::Tensor& output) override { hooks_.after_forward(unit, output); }
  void before_gradients(std::size_t unit) override { hooks_.before_gradients(unit); }
  void before_backward(std::size_t unit) override {
    if (on_unit_) on_unit_();
    hooks_.before_backward(unit);
  }
  void after_backward(std::size_t unit) override { hooks_.after_backward(unit); }
  void before_recompute(std::size_t unit) override { hooks_.before_recompute(unit); }
  void after_recompute(std::size_t unit) override { hooks_.after_recompute(unit); }

 private:
  Transformer& model_;
  UnitHooks& hooks_;
  const std::function<void()>& on_unit_;
};

std::vector<UnitParameters> parameters_of(Transformer& model) {
  std::vector<UnitParameters> units;
  for (auto& unit : model.units()) {
    units.push_back({unit.name, {}});
    for (auto& parameter : unit.parameters) {
      units.back().parameters.push_back({parameter.name, parameter.shape, parameter.decayed(), &parameter.value});
    }
  }
  return units;
}

}  // namespace

/// What the ranks tell each other once a step.
struct Trainer::Summary {
  double loss = 0;
  double grad_norm = 0;
  int stop_signal = 0;
};

/// Gathers, frees and reduces units as the network goes through them, tells the ledger which it is, and times
/// recomputation.
class Trainer::Hooks final : public UnitHooks {
 public:
  Hooks(ShardedUnits& units, const TrainerParts& parts, double& recompute_seconds)
      : units_(units), ledger_(parts.ledger), clock_(parts.clock), recompute_seconds_(recompute_seconds) {}
  ~Hooks() override { ledger_.set_unit(-1); }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void before_forward(std::size_t unit) override {
    ledger_.set_unit(static_cast<int>(unit));
    units_.before_forward(unit);
  }
  void after_forward(std::size_t unit, const at::Tensor& /*output*/) override { units_.after_forward(unit); }
  void before_gradients(std::size_t unit) override { units_.begin_gradients(unit); }
  void before_backward(std::size_t unit) override {
    ledger_.set_unit(static_cast<int>(unit));
    units_.before_backward(unit);
  }
  void after_backward(std::size_t unit) override { units_.after_backward(unit); }
  void before_recompute(std::size_t /*unit*/) override { recompute_seconds_ -= clock_.wall_seconds(); }
  void after_recompute(std::size_t /*unit*/) override { recompute_seconds_ += clock_.wall_seconds(); }

 private:
  ShardedUnits& units_;
  MemoryLedger& ledger_;
  const Clock& clock_;
  double& recompute_seconds_;
};

Trainer::Trainer(const Recipe& recipe, const ModelConfig& config, TrainerParts parts)
    : recipe_(recipe),
      parts_(std::move(parts)),
      batch_shape_{recipe.train.micro_batch_size, recipe.train.gradient_accumulation_steps, parts_.communicator.rank(),
                   parts_.communicator.world_size()},
      model_(config, transformer_options(recipe), parts_.device),
      units_(parameters_of(model_), sharding_options(recipe), parts_.communicator, parts_.device),
      optimizer_(units_, adamw_options(recipe), parts_.device),
      scaler_(recipe.train.precision, recipe.train.loss_scale) {
  progress_.loss_scaler = scaler_.state();
  std::vector<std::string> names;
  for (const auto& unit : model_.units()) names.push_back(unit.name);
  parts_.ledger.set_unit_names(std::move(names));
  const UntrackedScope untracked;
  generator_ = at::make_generator<at::CPUGeneratorImpl>(random_stream(recipe.seed, batch_shape_.rank));
}

void Trainer::enter(Phase phase) {
  parts_.ledger.set_phase(phase);
  if (parts_.on_phase) parts_.on_phase(phase, step_in_work_);
}

void Trainer::write_parameter(std::size_t unit, std::size_t parameter, const at::Tensor& values) {
  const BelowAutograd below;
  units_[unit].write_parameter(parameter, values);
}

void Trainer::initialize_parameters() {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(recipe_.seed));
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const auto& parameters = model_.units()[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const UntrackedScope untracked;  // host memory, one parameter at a time
      Parameter whole = parameters[i];
      whole.value = at::empty(whole.shape, at::device(parts_.device.torch_device()).dtype(at::kFloat));
      initialize_parameter(whole, model_.config(), generator);
      write_parameter(unit, i, whole.value);
      if (parts_.on_unit) parts_.on_unit();
    }
  }
  publish_parameters();
}

template <class Work>
void Trainer::timed(double& seconds, double& cpu_seconds, Work work) {
  const double wall = parts_.clock.wall_seconds() - parts_.communicator.totals().seconds;
  const double cpu = parts_.clock.cpu_seconds();
  work();
  parts_.device.synchronize();
  seconds += parts_.clock.wall_seconds() - parts_.communicator.totals().seconds - wall;
  cpu_seconds += parts_.clock.cpu_seconds() - cpu;
}

void Trainer::accumulate_gradients(const StepBatch& batch, const at::Tensor& loss, StepRecord& record) {
  units_.begin_step();
  Hooks hooks(units_, parts_, record.recompute_seconds);
  const HooksScope scope(model_, hooks, parts_.on_unit);
  for (const auto& micro_batch : batch.micro_batches) {
    units_.begin_micro_step(&micro_batch == &batch.micro_batches.back());
    at::Tensor micro_loss;
    enter(Phase::forward);
    timed(record.forward_seconds, record.compute_cpu_seconds, [&] {
      micro_loss = model_.loss(micro_batch.input_ids, micro_batch.targets, micro_batch.weights, scaler_.scale());
    });
    enter(Phase::backward);
    timed(record.backward_seconds, record.compute_cpu_seconds, [&] {
      model_.backward(micro_loss);
      loss.add_(micro_loss.detach());
      micro_loss.reset();
    });
    enter(Phase::accumulate);
    units_.end_micro_step();
  }
}

Trainer::Summary Trainer::exchange_summary(const at::Tensor& loss, int stop_signal) {
  const BelowAutograd below;
  const MemoryScope scope(MemoryCategory::communication);
  std::vector<at::Tensor> fields{
      loss, parts_.device.upload(std::vector<double>{static_cast<double>(stop_signal), scaler_.scale()})};
  constexpr std::size_t num_fixed = 3;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (const auto* group = units_[unit].trained()) {
      fields.push_back(sum_of_squares(group->shard_of(group->gradient())));
    }
  }
  const at::Tensor own = at::cat(fields);
  const at::Tensor all = at::empty({own.numel() * batch_shape_.world_size}, own.options());
  parts_.communicator.all_gather(all, own);
  const auto values = parts_.device.read(all);

  Summary summary;
  double sum_of_all_squares = 0;
  const auto num_fields = static_cast<std::size_t>(own.numel());
  for (int rank = 0; rank < batch_shape_.world_size; ++rank) {
    const double* of_rank = values.data() + static_cast<std::size_t>(rank) * num_fields;
    double rank_squares = 0;
    for (std::size_t i = num_fixed; i < num_fields; ++i) rank_squares += of_rank[i];
    summary.loss += of_rank[0];
    summary.stop_signal = std::max(summary.stop_signal, static_cast<int>(of_rank[1]));
    if (of_rank[2] != values[2]) {
      throw Error(ErrorKind::internal, "rank " + std::to_string(rank) + " has the loss scale " +
                                           format_number(of_rank[2]) + ", rank 0 " + format_number(values[2]) +
                                           "; their gradients must not be mixed");
    }
    sum_of_all_squares += rank_squares;
  }
  summary.grad_norm = std::sqrt(sum_of_all_squares) / scaler_.scale();
  return summary;
}

void Trainer::update(const Summary& summary, StepRecord& record) {
  const BelowAutograd below;
  const double limit = recipe_.train.max_grad_norm;
  // The clip factor min(1, limit / (norm + 1e-6)), as a divisor.
  const double clip = limit > 0 ? std::max(1.0, (summary.grad_norm + 1e-6) / limit) : 1.0;
  const double divisor = clip * scaler_.scale();
  timed(record.optimizer_seconds, record.compute_cpu_seconds, [&] {
    const at::Tensor divisor_tensor = parts_.device.upload(std::vector<float>{static_cast<float>(divisor)}, {1});
    optimizer_.step(record.learning_rate, divisor_tensor);
    units_.publish();
  });
}

// After the reduction a bad gradient is everybody's. So the step is done again, up to each rank's own gradients.
void Trainer::fail_not_finite(const Summary& summary) {
  units_.begin_step();
  NotFiniteFinder finder(model_, units_, parts_.device);
  std::optional<NotFiniteFinder::First> first;
  {
    const HooksScope scope(model_, finder, parts_.on_unit);
    units_.begin_micro_step(/*last=*/false);
    const auto batch = load_step_batch(parts_.rows, progress_.samples, batch_shape_, parts_.device);
    for (const auto& micro_batch : batch.micro_batches) {
      model_.backward(model_.loss(micro_batch.input_ids, micro_batch.targets, micro_batch.weights, scaler_.scale()));
    }
    first = finder.first(parts_.communicator);
  }
  units_.begin_step();
  const std::string where =
      "step " + std::to_string(step_in_work_) + " is not finite (loss " + std::to_string(summary.loss) +
      ", gradient norm " + std::to_string(summary.grad_norm) + "), first " +
      (first ? "on rank " + std::to_string(first->rank) + ": " + first->tensor : "the sum of all ranks' gradients");
  // An error of communication is never taken for the cause, so that the rank in question is the one that is named.
  const bool own = !first || first->rank == batch_shape_.rank;
  const auto kind = own ? ErrorKind::numeric : ErrorKind::communication;
  if (scaler_.active() && std::isfinite(summary.loss)) {
    throw Error(kind, where + "; train.loss_scale is at its minimum " + format_number(scaler_.scale()) +
                          ": this model is not trainable in fp16, use precision bf16");
  }
  throw Error(kind, where + "; lower optimizer.learning_rate or look at the data");
}

StepRecord Trainer::step(const std::function<int()>& stop_signal) {
  const double start = parts_.clock.wall_seconds();
  const double start_cpu = parts_.clock.cpu_seconds();
  const double start_communication = parts_.communicator.totals().seconds;
  StepRecord record;
  record.step = progress_.step + 1;
  step_in_work_ = record.step;
  record.learning_rate =
      learning_rate_at(recipe_.schedule, recipe_.optimizer.learning_rate, record.step, recipe_.train.max_steps);

  enter(Phase::forward);
  StepBatch batch = load_step_batch(parts_.rows, progress_.samples, batch_shape_, parts_.device);
  record.data_seconds = parts_.clock.wall_seconds() - start;
  record.tokens = batch.tokens;
  record.loss_tokens = batch.loss_tokens;
  const at::Tensor loss = at::zeros({1}, at::device(parts_.device.torch_device()).dtype(at::kDouble));
  accumulate_gradients(batch, loss, record);
  batch.micro_batches.clear();

  const Summary summary = exchange_summary(loss, stop_signal ? stop_signal() : 0);
  record.loss = summary.loss;
  record.grad_norm = summary.grad_norm;
  record.stop_signal = summary.stop_signal;
  record.loss_scale = scaler_.scale();
  record.overflowed = !std::isfinite(summary.grad_norm);
  const bool may_skip = scaler_.active() && !scaler_.at_minimum();
  if (!std::isfinite(summary.loss) || (record.overflowed && !may_skip)) fail_not_finite(summary);

  enter(Phase::update);
  record.skipped = record.overflowed || batch.loss_tokens == 0;
  if (record.skipped) {
    ++progress_.skipped_steps;
  } else {
    update(summary, record);
  }
  scaler_.update(record.overflowed);
  progress_.step = record.step;
  progress_.loss_scaler = scaler_.state();
  progress_.samples += batch_shape_.step_rows();

  record.compute_seconds = record.forward_seconds + record.backward_seconds + record.optimizer_seconds;
  record.communication_seconds = parts_.communicator.totals().seconds - start_communication;
  record.step_seconds = parts_.clock.wall_seconds() - start;
  record.cpu_seconds = parts_.clock.cpu_seconds() - start_cpu;
  const auto peak = parts_.ledger.take_interval_peak();
  record.peak_allocated_bytes = peak.allocated_bytes;
  record.peak_reserved_bytes = peak.reserved_bytes;
  return record;
}

EvalRecord Trainer::evaluate(const RowSource& rows) {
  const at::NoGradGuard no_grad;
  const double start = parts_.clock.wall_seconds();
  const std::int64_t most = batch_shape_.micro_rows() * kMostEvalMicroSteps;
  const std::int64_t end = std::min(most, rows.epoch_samples().value_or(most));
  enter(Phase::forward);
  EvalRecord record;
  double unused = 0;
  Hooks hooks(units_, parts_, unused);
  const HooksScope scope(model_, hooks, parts_.on_unit);
  record.loss_tokens = count_trained_tokens(rows, 0, end);
  const at::Tensor loss = at::zeros({1}, at::device(parts_.device.torch_device()).dtype(at::kDouble));
  for (std::int64_t first = 0; first < end; first += batch_shape_.micro_rows()) {
    const auto batch = load_micro_batch(rows, first, end, record.loss_tokens, batch_shape_, parts_.device);
    loss.add_(model_.loss(batch.input_ids, batch.targets, batch.weights));
  }
  const at::Tensor all = at::empty({batch_shape_.world_size}, loss.options());
  parts_.communicator.all_gather(all, loss);
  for (const double value : parts_.device.read(all)) record.loss += value;
  units_.begin_step();  // what the last unit left gathered is no part of a step
  enter(Phase::update);
  record.seconds = parts_.clock.wall_seconds() - start;
  return record;
}

}  // namespace assay
