#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "checkpoint/checkpointer.h"
#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/core/host.h"
#include "harness/core/log.h"
#include "harness/core/units.h"
#include "harness/memory/allocator_settings.h"
#include "harness/memory/tracking_allocator.h"
#include "harness/recipe/enum_names.h"
#include "harness/recipe/recipe_json.h"
#include "harness/train/job.h"
#include "harness/train/load_model.h"
#include "harness/train/rank_context.h"
#include "harness/train/rank_events.h"
#include "harness/train/tensor_bytes.h"
#include "harness/train/training_loop.h"

namespace assay {
namespace {

Json versions() { return {{"assay", ASSAY_VERSION}, {"libtorch", TORCH_VERSION}}; }

Json state_of(const Progress& progress, const std::string& data) {
  return {{"step", progress.step},
          {"samples", progress.samples},
          {"skipped_steps", progress.skipped_steps},
          {"loss_scale", progress.loss_scaler.scale},
          {"loss_scale_good_steps", progress.loss_scaler.good_steps},
          {"data", data}};
}

std::string name_of_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "fp32";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    default:
      return at::toString(dtype);
  }
}

Progress progress_from(const Json& state) {
  // Checkpoints of fp32 runs made before there was a loss scale have none.
  return {state.at("step").get<std::int64_t>(),
          state.at("samples").get<std::int64_t>(),
          state.at("skipped_steps").get<std::int64_t>(),
          {state.value("loss_scale", 1.0), state.value("loss_scale_good_steps", std::int64_t{0})}};
}

// Keys that may differ between a checkpoint and the run that resumes it: they change no number of the training.
const std::set<std::string>& harmless_changes() {
  static const std::set<std::string> keys{"name",
                                          "resume",
                                          "checkpoint.interval",
                                          "checkpoint.keep_latest",
                                          "checkpoint.save_at_end",
                                          "data.eval_path",
                                          "train.eval_interval",
                                          "parallel.timeout_seconds",
                                          "parallel.cpu_binding",
                                          "device_memory"};
  return keys;
}

/// One rank of a training job. The only place that joins model, sharding and checkpoint.
class RankProcess {
 public:
  RankProcess(const Job& job, const Clock& clock, MemoryLedger& ledger, RankEvents& events)
      : job_(job),
        clock_(clock),
        ledger_(ledger),
        events_(events),
        config_(load_model_config(job.recipe.model.path, job.recipe.model.config)),
        rows_(make_row_source(job.recipe, job.world.world_size, config_.vocab_size)),
        eval_rows_(make_eval_source(job.recipe, config_.vocab_size)),
        device_(make_cpu_device(static_cast<int>(job.recipe.train.num_threads))),
        communicator_(job.communicator ? job.communicator
                                       : make_communicator(job.world, job.recipe.parallel.timeout_seconds, clock_)),
        group_(*communicator_),
        checkpointer_(job.folder / "checkpoints", static_cast<int>(job.recipe.checkpoint.keep_latest), group_,
                      [this] { events_.beat(); }) {}

  int run();

 private:
  void load();
  void check_data_is_equal();
  void restore();
  bool may_change(const std::string& key) const;
  void check_recipe(const Manifest& manifest) const;
  double state_bytes() const;
  void write_run_event();
  void record(const StepRecord& record);
  void evaluate(std::int64_t step);
  void save(const StepRecord& step);
  void check_something_was_trained(int stop_signal) const;
  void finish(int stop_signal, double gemm_gflops);
  bool leads() const { return job_.world.rank == 0; }

  const Job& job_;
  const Clock& clock_;
  MemoryLedger& ledger_;
  RankEvents& events_;
  ModelConfig config_;
  std::unique_ptr<RowSource> rows_;
  std::unique_ptr<RowSource> eval_rows_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<Communicator> communicator_;
  CommunicatorGroup group_;
  Checkpointer checkpointer_;
  std::unique_ptr<Trainer> trainer_;
  std::set<std::string> file_dtypes_;  ///< of the weights that were loaded
  Json resumed_from_;
  double save_seconds_ = 0;  ///< of the step being recorded
};

void RankProcess::load() {
  trainer_ = std::make_unique<Trainer>(
      job_.recipe, config_,
      TrainerParts{*device_, *communicator_, clock_, ledger_, *rows_,
                   [this](Phase phase, std::int64_t step) { events_.enter(phase, step); }, [this] { events_.beat(); }});
  check_data_is_equal();
  if (job_.recipe.model.init == ModelInit::load) {
    load_model_weights(trainer_->model(), job_.recipe.model.path,
                       [this](std::size_t unit, std::size_t i, const at::Tensor& values) {
                         file_dtypes_.insert(name_of_dtype(values.scalar_type()));
                         trainer_->write_parameter(unit, i, values);
                         events_.beat();
                       });
    trainer_->publish_parameters();
  } else {
    trainer_->initialize_parameters();
  }
}

void RankProcess::check_data_is_equal() {
  const auto identities = group_.all_gather(rows_->identity());
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    if (identities[rank] != identities[0]) {
      throw Error(ErrorKind::data,
                  "rank " + std::to_string(rank) + " and rank 0 read different data: " + rows_->description());
    }
  }
}

bool RankProcess::may_change(const std::string& key) const {
  const auto allowed = job_.options.value("allow_change", std::vector<std::string>());
  return std::find(allowed.begin(), allowed.end(), key) != allowed.end();
}

void RankProcess::check_recipe(const Manifest& manifest) const {
  std::string refused;
  for (const auto& difference : recipe_differences(recipe_from_json(manifest.run.recipe), job_.recipe)) {
    const bool ungoverned = difference.key.rfind("accept.", 0) == 0 || difference.key.rfind("plan.", 0) == 0;
    if (ungoverned || harmless_changes().count(difference.key) > 0 || may_change(difference.key)) continue;
    refused += "\n  " + difference.key + ": " + difference.left + " in the checkpoint, " + difference.right + " now";
  }
  if (!refused.empty()) {
    throw Error(
        ErrorKind::recipe,
        "the checkpoint was made by another recipe; give --allow-change KEY for each change you mean:" + refused);
  }
}

void RankProcess::restore() {
  if (job_.recipe.resume == "never") return;
  trainer_->enter(Phase::restore);
  const auto tensors = trainer_->state_tensors();
  // A checkpoint of this run itself is newer than the one it started from.
  auto restored = checkpointer_.restore_newest(destinations_of(tensors));
  if (!restored && job_.recipe.resume != "auto") {
    restored = checkpointer_.restore(job_.recipe.resume, destinations_of(tensors));
  }
  if (!restored) return;
  check_recipe(restored->manifest);
  if (restored->rank_state.at("data").get<std::string>() != rows_->identity() && !may_change("data.path")) {
    throw Error(ErrorKind::data, "the data is not what it was when " + restored->path.string() +
                                     " was saved (files were added, removed or changed): " + rows_->description() +
                                     "; give --allow-change data.path to go on with it");
  }
  trainer_->finish_restore(progress_from(restored->rank_state));
  resumed_from_ = restored->path.string();
  Json skipped = Json::array();
  for (const auto& damaged : restored->skipped) {
    skipped.push_back({{"path", damaged.path.string()}, {"reason", damaged.reason}});
    if (leads()) log_warning("skipped damaged checkpoint " + damaged.path.string() + ": " + damaged.reason);
  }
  events_.write("checkpoint", {{"restored", true},
                               {"path", restored->path.string()},
                               {"seconds", restored->seconds},
                               {"bytes", restored->size_bytes},
                               {"restored_step", restored->step},
                               {"skipped", skipped}});
  if (leads()) log_info("resumed from " + restored->path.string());
}

double RankProcess::state_bytes() const {
  const auto& bytes = ledger_.by_category();
  std::int64_t sum = 0;
  for (const auto category : {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer}) {
    sum += bytes[static_cast<std::size_t>(category)];
  }
  return static_cast<double>(sum);
}

void RankProcess::write_run_event() {
  std::int64_t parameters = 0;
  std::int64_t trainable = 0;
  const at::ScalarType dtype = trainer_->model().units().front().parameters.front().value.scalar_type();
  for (const auto& unit : trainer_->model().units()) {
    for (const auto& parameter : unit.parameters) {
      ASSAY_CHECK(parameter.value.scalar_type() == dtype);
      parameters += parameter.value.numel();
      trainable += parameter.value.requires_grad() ? parameter.value.numel() : 0;
    }
  }
  events_.write("run", {{"job", job_.kind},
                        {"pid", ::getpid()},
                        {"host", host_name()},
                        {"world_size", job_.world.world_size},
                        {"device", "cpu"},
                        {"backend", job_.world.world_size > 1 ? "gloo" : "none"},
                        {"num_threads", job_.recipe.train.num_threads},
                        {"parameters", parameters},
                        {"trainable_parameters", trainable},
                        {"param_dtype", name_of_dtype(dtype)},
                        {"state_bytes_per_parameter", state_bytes() / static_cast<double>(parameters)},
                        {"model_flops_per_token", config_.model_flops_per_token(job_.recipe.data.sequence_length)},
                        {"flops_convention", kFlopsConvention},
                        {"versions", versions()},
                        {"recipe_hash", recipe_hash(job_.recipe)},
                        {"resumed_from", resumed_from_},
                        {"state_hash", trainer_->state_hash()},
                        {"parameters_hash", trainer_->parameters_hash()},
                        {"data", rows_->description()},
                        {"notes", config_.notes}});
  events_.write("option", {{"name", "model.attention"},
                           {"asked", name_of(job_.recipe.model.attention)},
                           {"used", ops::name_of(trainer_->model().options().kernels.attention)}});
  for (const auto& file_dtype : file_dtypes_) {
    events_.write("option",
                  {{"name", "dtype of the weights' files"}, {"asked", file_dtype}, {"used", name_of_dtype(dtype)}});
    if (leads() && file_dtype != name_of_dtype(dtype)) {
      log_info("weights in " + file_dtype + " were loaded into " + name_of_dtype(dtype) + " (train.precision " +
               std::string(name_of(job_.recipe.train.precision)) + ")");
    }
  }
  if (dtype != at::kFloat) {
    events_.write("option", {{"name", "train.precision"},
                             {"asked", name_of(job_.recipe.train.precision)},
                             {"used", name_of_dtype(dtype) + " weights, matrix products in fp32 (cpu)"}});
  }
}

void RankProcess::record(const StepRecord& record) {
  events_.step(record, std::exchange(save_seconds_, 0));
  if (!leads()) return;
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(), "step %lld/%lld  loss %.4f  grad norm %.3f  lr %.2e  %.0f tokens/s",
                static_cast<long long>(record.step), static_cast<long long>(job_.recipe.train.max_steps), record.loss,
                record.grad_norm, record.learning_rate, static_cast<double>(record.tokens) / record.step_seconds);
  log_info(line.data());
}

void RankProcess::evaluate(std::int64_t step) {
  const std::int64_t interval = job_.recipe.train.eval_interval;
  if (interval == 0 || !eval_rows_ || step % interval != 0) return;
  const EvalRecord record = trainer_->evaluate(*eval_rows_);
  Json fields{{"tokens", record.loss_tokens}, {"seconds", record.seconds}};
  set_number(fields, "loss", record.loss);
  events_.write("eval", fields);
  if (leads()) log_info("evaluation after step " + std::to_string(step) + ": loss " + format_number(record.loss));
}

void RankProcess::save(const StepRecord& record) {
  const auto& options = job_.recipe.checkpoint;
  const std::int64_t step = record.step;
  const bool due = options.interval > 0 && step % options.interval == 0;
  const bool at_end = options.save_at_end && step == job_.recipe.train.max_steps;
  const bool stopped = record.stop_signal != 0;
  if (!(due || at_end || stopped)) return;
  const double start = clock_.wall_seconds();
  trainer_->enter(Phase::save);
  const auto tensors = trainer_->state_tensors();
  const auto result = checkpointer_.save(step, bytes_of(tensors), state_of(trainer_->progress(), rows_->identity()),
                                         {recipe_to_json(job_.recipe), recipe_hash(job_.recipe), versions()});
  std::size_t own_bytes = 0;
  for (const auto& tensor : tensors) own_bytes += tensor.tensor.nbytes();
  trainer_->enter(Phase::update);
  save_seconds_ += clock_.wall_seconds() - start;
  events_.write("checkpoint", {{"path", result.path.string()},
                               {"seconds", result.seconds},
                               {"bytes", own_bytes},
                               {"saved_step", step},
                               {"reason", due ? "interval" : (stopped ? "signal" : "end")}});
}

void RankProcess::check_something_was_trained(int stop_signal) const {
  const auto& progress = trainer_->progress();
  if (stop_signal != 0 || progress.skipped_steps < progress.step) return;
  // Also where an earlier attempt made the steps: each overflow has halved the scale.
  const auto& train = job_.recipe.train;
  if (train.precision == Precision::fp16 && progress.loss_scaler.scale < train.loss_scale.initial) {
    throw Error(ErrorKind::numeric, "the fp16 gradients of all " + std::to_string(progress.step) +
                                        " steps overflowed, so the model is what it was; lower "
                                        "train.loss_scale.initial, or train more steps: each halves it");
  }
  throw Error(ErrorKind::data, "no token was trained in " + std::to_string(progress.step) +
                                   " steps, so the model is what it was: every label is ignored (-100) in " +
                                   rows_->description());
}

void RankProcess::finish(int stop_signal, double gemm_gflops) {
  events_.finish_phases();
  const std::int64_t used = trainer_->progress().samples;
  const auto available = rows_->num_samples() ? rows_->num_samples() : rows_->epoch_samples();
  Json fields{{"exit_code", stop_signal == 0 ? exit_done : exit_incomplete},
              {"stopped_by", stop_signal == 0 ? Json() : Json(stop_signal)},
              {"state_hash", trainer_->state_hash()},
              {"parameters_hash", trainer_->parameters_hash()},
              {"gemm_gflops", gemm_gflops},
              {"compute_seconds", events_.compute_seconds},
              {"compute_cpu_seconds", events_.compute_cpu_seconds},
              {"samples_used", used},
              {"samples_unused", available ? Json(std::max<std::int64_t>(0, *available - used)) : Json()}};
  if (!available) fields["samples_unused_reason"] = "the data has no end";
  events_.write("end", fields);
}

int RankProcess::run() {
  catch_stop_signals();  // only once the ranks have met: while one waits for the others, a signal ends it
  load();
  restore();
  trainer_->enter(Phase::load);
  const double gemm_gflops = measure_gemm_gflops(clock_);
  write_run_event();
  LoopFeatures features;
  features.stop_signal = received_stop_signal;
  features.evaluate = [this](std::int64_t step) { evaluate(step); };
  features.save = [this](const StepRecord& step) { save(step); };
  features.record = [this](const StepRecord& step) { record(step); };
  const int stop_signal = run_training_loop(*trainer_, job_.recipe.train.max_steps, features);
  check_something_was_trained(stop_signal);
  communicator_->barrier();
  finish(stop_signal, gemm_gflops);
  return stop_signal == 0 ? exit_done : exit_incomplete;
}

}  // namespace

namespace {

constexpr std::size_t kHistoryEntries = std::size_t{1} << 16;

/// The device as it was when it was full, for PyTorch's memory viewer and for a viewer of Chrome traces.
void write_memory_snapshot(const Job& job, const MemoryLedger& ledger) {
  if (!ledger.out_of_memory() || !ledger.history()) return;
  const int rank = job.world.rank;
  try {
    write_file_durably(
        memory_snapshot_file(job.folder, rank),
        memory_snapshot_pickle(ledger.out_of_memory()->segments, *ledger.history(), ledger.allocator().settings()));
    write_file_durably(memory_trace_file(job.folder, rank), chrome_trace(*ledger.history()));
  } catch (const std::exception& error) {  // running out of memory is what there is to tell
    log_warning(std::string("the memory snapshot could not be written: ") + error.what());
  }
}

}  // namespace

int run_train(const Job& job) {
  install_tracking_allocators();
  const SystemClock clock;
  const auto ledger = std::make_shared<MemoryLedger>(allocator_settings(job.recipe));
  ledger->keep_history(kHistoryEntries);
  const LedgerScope scope(ledger);
  RankEvents events(job, clock, *ledger);
  try {
    RankProcess process(job, clock, *ledger, events);
    return process.run();
  } catch (...) {
    const Error error = current_error();
    events.error(error);
    if (error.kind() == ErrorKind::memory) write_memory_snapshot(job, *ledger);
    throw error;
  }
}

}  // namespace assay
