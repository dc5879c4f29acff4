#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace assay {

/// The values of a recipe, section by section. Plain values with the defaults of the contract; after resolve() all that
/// was `auto` or derived is filled in. Names of alternatives are those of the recipe file (enum_names.h).

enum class Mode { pretrain, full, lora, qlora, inference };
enum class DeviceChoice { cpu, cuda, automatic };
enum class ModelInit { random, load };
enum class AttentionChoice { automatic, flash, efficient, cudnn, math };
enum class DataFormat { automatic, text, jsonl, llmc, nanogpt, llmq, batches, synthetic };
enum class Precision { fp32, bf16, fp16, pure_bf16 };
enum class ActivationCheckpointing { none, selective, full };
enum class OptimizerName { adamw, sgd };
enum class ScheduleName { cosine, linear, constant, wsd };
enum class WarmupConvention { transformers, torchtitan };
enum class StrategyName { none, ddp, zero1, zero2, fsdp };
enum class BackendChoice { automatic, gloo, nccl };
enum class CpuBinding { automatic, none };
enum class QuantizationType { none, nf4 };
enum class FloatType { fp32, bf16 };

struct ModelOptions {
  std::string path;               ///< folder with config.json, relative to the working folder
  std::string config = "{}";      ///< overrides of config keys: text of a JSON object with Hugging Face names
  std::optional<ModelInit> init;  ///< resolved: random for pretrain, load for full, lora and qlora
  AttentionChoice attention = AttentionChoice::automatic;
  bool operator==(const ModelOptions&) const = default;
};

struct TokenizerOptions {
  std::optional<std::string> path;  ///< folder, "bytes", or nothing for token files
  bool operator==(const TokenizerOptions&) const = default;
};

struct DataPath {
  std::string path;
  double weight = 1;
  bool operator==(const DataPath&) const = default;
};

struct DataOptions {
  std::vector<DataPath> path;
  bool shuffle = true;
  DataFormat format = DataFormat::automatic;
  std::int64_t sequence_length = 128;
  bool packing = true;
  std::string chat_template = "auto";  ///< key `template`
  std::optional<std::string> eval_path;
  bool operator==(const DataOptions&) const = default;
};

struct LossScaleOptions {
  double initial = 65536;
  std::int64_t growth_interval = 2000;
  double minimum = 1;
  bool operator==(const LossScaleOptions&) const = default;
};

struct TrainOptions {
  std::int64_t micro_batch_size = 2;
  std::int64_t gradient_accumulation_steps = 2;
  std::optional<std::int64_t> global_batch_size;  ///< resolved: the product
  std::int64_t max_steps = 20;
  std::optional<double> epochs;
  double max_grad_norm = 1.0;  ///< 0: no clipping
  Precision precision = Precision::fp32;
  LossScaleOptions loss_scale;
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  std::int64_t loss_chunk_tokens = 1024;
  std::int64_t eval_interval = 0;  ///< 0: no evaluation
  std::int64_t num_threads = 1;    ///< threads a rank
  bool operator==(const TrainOptions&) const = default;
};

struct OptimizerOptions {
  OptimizerName name = OptimizerName::adamw;
  double learning_rate = 3e-4;
  std::array<double, 2> betas{0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::optional<FloatType> moment_dtype;  ///< resolved: bf16 for pure_bf16, else fp32
  bool operator==(const OptimizerOptions&) const = default;
};

struct ScheduleOptions {
  ScheduleName name = ScheduleName::cosine;
  std::int64_t warmup_steps = 2;
  double min_lr_ratio = 0.1;
  WarmupConvention convention = WarmupConvention::transformers;
  bool operator==(const ScheduleOptions&) const = default;
};

struct LoraOptions {
  std::int64_t r = 8;
  double lora_alpha = 16;
  double lora_dropout = 0;
  std::vector<std::string> target_modules{"q_proj", "v_proj"};  ///< one entry may be "all-linear" or a pattern
  std::vector<std::string> modules_to_save;
  std::map<std::string, std::int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  bool use_rslora = false;
  std::optional<std::string> adapter_path;
  bool operator==(const LoraOptions&) const = default;
};

struct QuantizationOptions {
  QuantizationType type = QuantizationType::none;
  std::int64_t block_size = 64;
  bool double_quant = true;
  bool operator==(const QuantizationOptions&) const = default;
};

struct ParallelOptions {
  std::int64_t nproc_per_node = 1;
  std::optional<StrategyName> strategy;  ///< resolved: none for one rank, ddp for more
  bool reshard_after_forward = true;
  std::int64_t units_in_flight = 2;
  FloatType reduce_dtype = FloatType::fp32;
  BackendChoice backend = BackendChoice::automatic;
  double timeout_seconds = 600;
  CpuBinding cpu_binding = CpuBinding::automatic;
  bool operator==(const ParallelOptions&) const = default;
};

struct CheckpointOptions {
  std::int64_t interval = 10;  ///< steps; 0: no saves by steps
  std::optional<double> minutes;
  std::int64_t keep_latest = 2;
  bool keep_best = false;
  bool save_at_end = true;
  bool asynchronous = false;  ///< key `async`
  std::optional<std::string> path;
  bool operator==(const CheckpointOptions&) const = default;
};

struct AcceptOptions {
  std::vector<std::string> stages{"machine", "estimate", "collective", "single", "train", "memory", "utilization"};
  std::optional<std::string> limits;  ///< file; resolved: recipes/limits/<device>.yaml
  bool operator==(const AcceptOptions&) const = default;
};

struct PlanOptions {
  std::optional<double> tokens;
  std::optional<std::array<double, 2>> days;
  std::optional<double> tokens_per_second_per_gpu;
  std::optional<double> scaling_efficiency;
  std::optional<std::string> measured_run;
  std::optional<double> price_per_gpu_hour;
  std::optional<double> price_per_gib_month;
  std::optional<double> price_per_gib_traffic;
  std::optional<double> occupancy;
  std::optional<double> build_price_per_gpu;
  std::int64_t runs = 1;
  std::optional<double> lease_hours;
  std::optional<double> target_loss;
  double accepted_loss_minutes = 60;
  double reserve = 0.08;
  bool operator==(const PlanOptions&) const = default;
};

struct InferenceOptions {
  std::int64_t batch_size = 1;
  std::int64_t prompt_tokens = 128;
  std::int64_t new_tokens = 16;
  bool operator==(const InferenceOptions&) const = default;
};

struct AllocatorOptions {
  std::optional<std::int64_t> max_split_size_bytes;  ///< key `max_split_size`
  bool expandable_segments = false;
  std::optional<std::int64_t> roundup_power2_divisions;
  std::optional<double> garbage_collection_threshold;
  bool operator==(const AllocatorOptions&) const = default;
};

struct Recipe {
  std::string name;
  Mode mode = Mode::pretrain;
  std::int64_t seed = 42;
  DeviceChoice device = DeviceChoice::cpu;
  std::optional<std::int64_t> device_memory_bytes;  ///< key `device_memory`; nothing: the device's own
  ModelOptions model;
  TokenizerOptions tokenizer;
  DataOptions data;
  TrainOptions train;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  LoraOptions lora;
  QuantizationOptions quantization;
  ParallelOptions parallel;
  CheckpointOptions checkpoint;
  std::string resume = "auto";  ///< auto, never, or a checkpoint folder
  AcceptOptions accept;
  PlanOptions plan;
  InferenceOptions inference;
  AllocatorOptions allocator;
  bool operator==(const Recipe&) const = default;
};

}  // namespace assay
