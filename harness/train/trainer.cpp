#include "harness/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "harness/core/error.h"
#include "harness/train/random.h"
#include "harness/train/schedule.h"
#include "sharding/gradient_norm.h"

namespace assay {
namespace {

ops::AttentionKernel attention_kernel(const Recipe& recipe) {
  ASSAY_CHECK(recipe.model.attention == AttentionChoice::flash);
  return ops::AttentionKernel::flash_cpu;
}

TransformerOptions transformer_options(const Recipe& recipe) {
  return {attention_kernel(recipe), recipe.data.sequence_length, recipe.train.loss_chunk_tokens};
}

// XXH3-128 of bytes in host memory.
class Hash {
 public:
  Hash() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_128bits_reset(state_.get()); }
  void add(const void* data, std::size_t size) { XXH3_128bits_update(state_.get(), data, size); }
  void add(const at::Tensor& tensor) { add(tensor.const_data_ptr(), tensor.nbytes()); }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    std::array<char, 33> text{};
    std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text.data();
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

AdamWOptions adamw_options(const OptimizerOptions& options) {
  return {options.betas[0], options.betas[1], options.eps, options.weight_decay};
}

}  // namespace

/// What the ranks tell each other once a step.
struct Trainer::Summary {
  double loss = 0;
  double grad_norm = 0;
  int stop_signal = 0;
  int first_bad_loss = -1;  ///< first rank whose own loss is not finite
};

Trainer::Trainer(const Recipe& recipe, const ModelConfig& config, TrainerParts parts)
    : recipe_(recipe),
      parts_(std::move(parts)),
      batch_shape_{recipe.train.micro_batch_size, recipe.train.gradient_accumulation_steps, parts_.communicator.rank(),
                   parts_.communicator.world_size()},
      model_(config, transformer_options(recipe), parts_.device) {
  std::vector<FlatUnit*> units;
  for (auto& unit : model_.units()) {
    std::vector<FlatParameter> parameters;
    for (auto& parameter : unit.parameters) {
      parameters.push_back({parameter.name, parameter.shape, parameter.decayed(), &parameter.value});
    }
    units_.push_back(
        std::make_unique<FlatUnit>(unit.name, parameters, batch_shape_.rank, batch_shape_.world_size, parts_.device));
    units.push_back(units_.back().get());
  }
  optimizer_ = std::make_unique<ShardedAdamW>(units, adamw_options(recipe.optimizer), parts_.device);
  const UntrackedScope untracked;
  generator_ = at::make_generator<at::CPUGeneratorImpl>(random_stream(recipe.seed, batch_shape_.rank));
}

void Trainer::enter(Phase phase) {
  parts_.ledger.set_phase(phase);
  if (parts_.on_phase) parts_.on_phase(phase, step_in_work_);
}

void Trainer::initialize_parameters() {
  const UntrackedScope untracked;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(recipe_.seed));
  for (auto& unit : model_.units()) {
    for (auto& parameter : unit.parameters) initialize_parameter(parameter, model_.config(), generator);
  }
}

template <class Work>
void Trainer::timed(double& seconds, double& cpu_seconds, Work work) {
  const double wall = parts_.clock.wall_seconds();
  const double cpu = parts_.clock.cpu_seconds();
  work();
  parts_.device.synchronize();
  seconds += parts_.clock.wall_seconds() - wall;
  cpu_seconds += parts_.clock.cpu_seconds() - cpu;
}

void Trainer::accumulate_gradients(const StepBatch& batch, const at::Tensor& loss, StepRecord& record) {
  for (const auto& micro_batch : batch.micro_batches) {
    at::Tensor micro_loss;
    enter(Phase::forward);
    timed(record.forward_seconds, record.compute_cpu_seconds,
          [&] { micro_loss = model_.loss(micro_batch.input_ids, micro_batch.targets, micro_batch.weights); });
    enter(Phase::backward);
    timed(record.backward_seconds, record.compute_cpu_seconds, [&] {
      micro_loss.backward();
      loss.add_(micro_loss.detach());
    });
  }
}

Trainer::Summary Trainer::exchange_summary(const at::Tensor& loss, int stop_signal) {
  const MemoryScope scope(MemoryCategory::communication);
  std::vector<at::Tensor> fields{loss, parts_.device.upload(std::vector<double>{static_cast<double>(stop_signal)})};
  const std::size_t num_fixed = fields.size();
  for (const auto& unit : units_) fields.push_back(sum_of_squares(unit->shard_of(unit->gradients())));
  const at::Tensor own = at::cat(fields);
  const at::Tensor all = at::empty({own.numel() * batch_shape_.world_size}, own.options());
  parts_.communicator.all_gather(all, own);
  const auto values = parts_.device.read(all);

  Summary summary;
  double sum_of_all_squares = 0;
  for (int rank = 0; rank < batch_shape_.world_size; ++rank) {
    const double* fields_of_rank = values.data() + static_cast<std::size_t>(rank) * fields.size();
    double rank_squares = 0;
    for (std::size_t i = num_fixed; i < fields.size(); ++i) rank_squares += fields_of_rank[i];
    if (summary.first_bad_loss < 0 && !std::isfinite(fields_of_rank[0])) summary.first_bad_loss = rank;
    summary.loss += fields_of_rank[0];
    summary.stop_signal = std::max(summary.stop_signal, static_cast<int>(fields_of_rank[1]));
    sum_of_all_squares += rank_squares;
  }
  summary.grad_norm = std::sqrt(sum_of_all_squares);
  return summary;
}

void Trainer::update(const Summary& summary, StepRecord& record) {
  const double limit = recipe_.train.max_grad_norm;
  // The clip factor min(1, limit / (norm + 1e-6)), as a divisor.
  const double divisor = limit > 0 ? std::max(1.0, (summary.grad_norm + 1e-6) / limit) : 1.0;
  timed(record.optimizer_seconds, record.compute_cpu_seconds, [&] {
    const at::Tensor divisor_tensor = parts_.device.upload(std::vector<float>{static_cast<float>(divisor)}, {1});
    optimizer_->step(record.learning_rate, divisor_tensor);
  });
}

void Trainer::fail_not_finite(const Summary& summary, std::int64_t step) const {
  // After the reduction a bad gradient is everybody's; the loss is still each rank's own.
  const std::string where =
      summary.first_bad_loss >= 0    ? "loss is not finite on rank " + std::to_string(summary.first_bad_loss)
      : batch_shape_.world_size == 1 ? "gradient is not finite on rank 0"
                                     : "the sum of all ranks' gradients is not finite, every rank's loss is,";
  throw Error(ErrorKind::numeric, where + " in step " + std::to_string(step) + " (loss " +
                                      std::to_string(summary.loss) + ", gradient norm " +
                                      std::to_string(summary.grad_norm) +
                                      "); lower optimizer.learning_rate or look at the data");
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
  for (const auto& unit : units_) unit->zero_gradients();
  const at::Tensor loss = at::zeros({1}, at::device(parts_.device.torch_device()).dtype(at::kDouble));
  accumulate_gradients(batch, loss, record);
  batch.micro_batches.clear();

  enter(Phase::accumulate);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // nothing from here on is differentiated
  for (const auto& unit : units_) parts_.communicator.all_reduce(unit->gradients());
  const Summary summary = exchange_summary(loss, stop_signal ? stop_signal() : 0);
  record.loss = summary.loss;
  record.grad_norm = summary.grad_norm;
  record.stop_signal = summary.stop_signal;
  if (!std::isfinite(summary.loss) || !std::isfinite(summary.grad_norm)) fail_not_finite(summary, record.step);

  enter(Phase::update);
  record.skipped = batch.loss_tokens == 0;
  if (record.skipped) {
    ++progress_.skipped_steps;
  } else {
    update(summary, record);
  }
  progress_.step = record.step;
  progress_.samples += batch_shape_.step_rows();

  record.compute_seconds = record.forward_seconds + record.backward_seconds + record.optimizer_seconds;
  record.communication_seconds = parts_.communicator.totals().seconds - start_communication;
  record.step_seconds = parts_.clock.wall_seconds() - start;
  record.cpu_seconds = parts_.clock.cpu_seconds() - start_cpu;
  record.peak_allocated_bytes = parts_.ledger.take_interval_peak();
  return record;
}

EvalRecord Trainer::evaluate(const RowSource& rows) {
  const at::NoGradGuard no_grad;
  const double start = parts_.clock.wall_seconds();
  const std::int64_t most = batch_shape_.micro_rows() * kMostEvalMicroSteps;
  const std::int64_t end = std::min(most, rows.epoch_samples().value_or(most));
  enter(Phase::forward);
  EvalRecord record;
  record.loss_tokens = count_trained_tokens(rows, 0, end);
  const at::Tensor loss = at::zeros({1}, at::device(parts_.device.torch_device()).dtype(at::kDouble));
  for (std::int64_t first = 0; first < end; first += batch_shape_.micro_rows()) {
    const auto batch = load_micro_batch(rows, first, end, record.loss_tokens, batch_shape_, parts_.device);
    loss.add_(model_.loss(batch.input_ids, batch.targets, batch.weights));
  }
  const at::Tensor all = at::empty({batch_shape_.world_size}, loss.options());
  parts_.communicator.all_gather(all, loss);
  for (const double value : parts_.device.read(all)) record.loss += value;
  enter(Phase::update);
  record.seconds = parts_.clock.wall_seconds() - start;
  return record;
}

std::vector<StateTensor> Trainer::state_tensors() {
  const UntrackedScope untracked;
  random_state_ = generator_.get_state();
  std::vector<StateTensor> tensors;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& unit = *units_[i];
    tensors.push_back({"parameters." + unit.name(), unit.shard_of(unit.parameters())});
    tensors.push_back({"exp_avg." + unit.name(), unit.shard_of(optimizer_->moments(i).exp_avg)});
    tensors.push_back({"exp_avg_sq." + unit.name(), unit.shard_of(optimizer_->moments(i).exp_avg_sq)});
  }
  tensors.push_back({"random_state", random_state_});
  return tensors;
}

void Trainer::finish_restore(const Progress& progress) {
  generator_.set_state(random_state_);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& unit = *units_[i];
    for (const at::Tensor& flat :
         {unit.parameters(), optimizer_->moments(i).exp_avg, optimizer_->moments(i).exp_avg_sq}) {
      parts_.communicator.all_gather(flat, unit.shard_of(flat));
    }
  }
  progress_ = progress;
  step_in_work_ = progress.step;
  optimizer_->set_num_steps(progress.step - progress.skipped_steps);
}

std::string Trainer::parameters_hash() const {
  Hash hash;
  for (const auto& unit : units_) hash.add(unit->parameters());
  return hash.text();
}

std::string Trainer::state_hash() const {
  Hash hash;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    hash.add(units_[i]->parameters());
    hash.add(optimizer_->moments(i).exp_avg);
    hash.add(optimizer_->moments(i).exp_avg_sq);
  }
  const std::array<std::int64_t, 4> counters{progress_.step, progress_.samples, progress_.skipped_steps,
                                             optimizer_->num_steps()};
  hash.add(counters.data(), sizeof(counters));
  return hash.text();
}

}  // namespace assay
