#include "harness/recipe/recipe_fields.h"

#include <algorithm>
#include <type_traits>

#include "harness/core/json.h"
#include "harness/core/units.h"
#include "harness/recipe/enum_names.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace {

constexpr double kMaxInt = 9223372036854775807.0;
constexpr double kMillion = 1e6;
constexpr double kBillion = 1e9;

template <class E>
FieldMember choice(E& member) {
  constexpr auto names = names_of(E{});
  return ChoiceMember{{names.begin(), names.end()},
                      [&member] { return std::optional(static_cast<std::size_t>(member)); },
                      [&member](std::size_t index) { member = static_cast<E>(index); }};
}

template <class E>
FieldMember choice(std::optional<E>& member) {
  constexpr auto names = names_of(E{});
  return ChoiceMember{{names.begin(), names.end()},
                      [&member] { return member ? std::optional(static_cast<std::size_t>(*member)) : std::nullopt; },
                      [&member](std::size_t index) { member = static_cast<E>(index); }};
}

void add_general(std::vector<Field>& fields, Recipe& r) {
  fields.insert(
      fields.end(),
      {{"name", &r.name, "name of the run; default: the file's name"},
       {"mode", choice(r.mode), "what is trained"},
       {"seed", &r.seed, "start of every random generator", {0, kMaxInt}},
       {"device", choice(r.device), "target; auto: cuda where a GPU is"},
       {"device_memory", BytesMember{&r.device_memory_bytes}, "capacity, simulated on cpu", {1, kMaxInt}, true},
       {"model.path", &r.model.path, "required: folder with config.json and, to load, safetensors"},
       {"model.config", JsonObjectMember{&r.model.config}, "config keys to override, Hugging Face names"},
       {"model.init", choice(r.model.init), "start weights; default: random for pretrain, else load"},
       {"model.attention", choice(r.model.attention), "attention kernel"},
       {"tokenizer.path", &r.tokenizer.path, "tokenizer.json folder, bytes, or null for token files", {}, true},
       {"data.path", &r.data.path, "required unless synthetic: files and folders", {0, kMillion, true}},
       {"data.shuffle", &r.data.shuffle, "new order in every epoch"},
       {"data.format", choice(r.data.format), "auto: by the files' names"},
       {"data.sequence_length", &r.data.sequence_length, "tokens a row", {2, 1 << 24}},
       {"data.packing", &r.data.packing, "fill rows with several documents"},
       {"data.template", &r.data.chat_template, "chat template of jsonl data"},
       {"data.eval_path", &r.data.eval_path, "held-out data", {}, true}});
}

void add_training(std::vector<Field>& fields, Recipe& r) {
  fields.insert(
      fields.end(),
      {{"train.micro_batch_size", &r.train.micro_batch_size, "rows of a rank in one micro-step", {1, 1 << 20}},
       {"train.gradient_accumulation_steps", &r.train.gradient_accumulation_steps, "micro-steps a step", {1, 1 << 20}},
       {"train.global_batch_size",
        &r.train.global_batch_size,
        "rows a step; must be micro batch x accumulation x ranks",
        {1, 1LL << 52},
        true},
       {"train.max_steps", &r.train.max_steps, "optimizer steps", {1, kBillion}},
       {"train.epochs", &r.train.epochs, "passes over the data", {0, kMillion, true}, true},
       {"train.max_grad_norm", &r.train.max_grad_norm, "clip gradients to this norm; 0: never", {0, kBillion}},
       {"train.precision", choice(r.train.precision), "compute dtype"},
       {"train.loss_scale.initial", &r.train.loss_scale.initial, "fp16 loss scale", {0, 1LL << 40, true}},
       {"train.loss_scale.growth_interval", &r.train.loss_scale.growth_interval, "good steps to double", {1, kBillion}},
       {"train.loss_scale.minimum", &r.train.loss_scale.minimum, "fp16 loss scale never below", {0, 1LL << 40, true}},
       {"train.activation_checkpointing", choice(r.train.activation_checkpointing), "recompute in backward"},
       {"train.loss_chunk_tokens", &r.train.loss_chunk_tokens, "tokens whose logits are held at once", {1, 1 << 24}},
       {"train.eval_interval", &r.train.eval_interval, "steps between evaluations; 0: never", {0, kBillion}},
       {"train.num_threads", &r.train.num_threads, "CPU threads a rank", {1, 1024}},
       {"optimizer.name", choice(r.optimizer.name), "update rule"},
       {"optimizer.learning_rate", &r.optimizer.learning_rate, "peak rate", {0, 1000, true}},
       {"optimizer.betas", &r.optimizer.betas, "decay of both moments", {0, 0.9999999}},
       {"optimizer.eps", &r.optimizer.eps, "added to the root of the second moment", {0, 1, true}},
       {"optimizer.weight_decay", &r.optimizer.weight_decay, "decoupled from the gradient", {0, 10}},
       {"optimizer.moment_dtype", choice(r.optimizer.moment_dtype),
        "dtype of the moments; default: bf16 for pure_bf16, else fp32"},
       {"schedule.name", choice(r.schedule.name), "shape of the learning rate"},
       {"schedule.warmup_steps", &r.schedule.warmup_steps, "steps to the peak rate", {0, kBillion}},
       {"schedule.min_lr_ratio", &r.schedule.min_lr_ratio, "last rate / peak rate", {0, 1}},
       {"schedule.convention", choice(r.schedule.convention), "first warm-up step: rate 0, or peak / warmup_steps"}});
}

void add_adapters(std::vector<Field>& fields, Recipe& r) {
  fields.insert(fields.end(),
                {{"lora.r", &r.lora.r, "rank of the adapter", {1, 1 << 16}},
                 {"lora.lora_alpha", &r.lora.lora_alpha, "scale x r", {0, kMillion, true}},
                 {"lora.lora_dropout", &r.lora.lora_dropout, "on the adapter's input", {0, 0.9999999}},
                 {"lora.target_modules", &r.lora.target_modules, "list, all-linear or a pattern", {}, false, true},
                 {"lora.modules_to_save", &r.lora.modules_to_save, "modules trained whole"},
                 {"lora.rank_pattern", &r.lora.rank_pattern, "r by module", {1, 1 << 16}},
                 {"lora.alpha_pattern", &r.lora.alpha_pattern, "lora_alpha by module", {0, kMillion, true}},
                 {"lora.use_rslora", &r.lora.use_rslora, "scale lora_alpha / sqrt(r)"},
                 {"lora.adapter_path", &r.lora.adapter_path, "adapter to go on from", {}, true},
                 {"quantization.type", choice(r.quantization.type), "storage of frozen weights"},
                 {"quantization.block_size", &r.quantization.block_size, "weights a scale", {32, 4096}},
                 {"quantization.double_quant", &r.quantization.double_quant, "quantize the scales too"}});
}

void add_running(std::vector<Field>& fields, Recipe& r) {
  fields.insert(
      fields.end(),
      {{"parallel.nproc_per_node",
        &r.parallel.nproc_per_node,
        "processes on a machine; an estimate may ask for those of many",
        {1, 65536}},
       {"parallel.strategy", choice(r.parallel.strategy), "what is sharded; default: ddp for several ranks"},
       {"parallel.reshard_after_forward", &r.parallel.reshard_after_forward, "fsdp: free gathered parameters"},
       {"parallel.units_in_flight",
        &r.parallel.units_in_flight,
        "units gathered, and as many in reduction, at once",
        {1, 1024}},
       {"parallel.reduce_dtype", choice(r.parallel.reduce_dtype), "dtype of gradient sums between ranks"},
       {"parallel.backend", choice(r.parallel.backend), "communication; auto: gloo on cpu, nccl on cuda"},
       {"parallel.timeout_seconds",
        &r.parallel.timeout_seconds,
        "longest wait in a collective; a rank without progress (units, chunks of files) for so long has stalled",
        {1, kMillion}},
       {"parallel.cpu_binding", choice(r.parallel.cpu_binding), "bind ranks to their NUMA node"},
       {"checkpoint.interval", &r.checkpoint.interval, "steps between saves; 0: none by steps", {0, kBillion}},
       {"checkpoint.minutes", &r.checkpoint.minutes, "minutes between saves", {0, kMillion, true}, true},
       {"checkpoint.keep_latest",
        &r.checkpoint.keep_latest,
        "complete checkpoints kept",
        {2, kMillion, false, "the newest may be damaged, and one is being replaced"}},
       {"checkpoint.keep_best", &r.checkpoint.keep_best, "keep the one with the least evaluation loss"},
       {"checkpoint.save_at_end", &r.checkpoint.save_at_end, "save after the last step"},
       {"checkpoint.async", &r.checkpoint.asynchronous, "write while training goes on"},
       {"checkpoint.path", &r.checkpoint.path, "folder; null: in the run folder", {}, true},
       {"resume", &r.resume, "auto, never or a checkpoint folder"},
       {"accept.stages", &r.accept.stages, "stages of the acceptance, in order"},
       {"accept.limits", &r.accept.limits, "file of limits; default: recipes/limits/<device>.yaml"}});
}

void add_planning(std::vector<Field>& fields, Recipe& r) {
  auto& p = r.plan;
  fields.insert(
      fields.end(),
      {{"plan.tokens", &p.tokens, "tokens to train on", {0, 1e18, true}, true},
       {"plan.days", &p.days, "shortest and longest time", {0, kMillion, true}, true},
       {"plan.tokens_per_second_per_gpu", &p.tokens_per_second_per_gpu, "measured rate", {0, 1e12, true}, true},
       {"plan.scaling_efficiency", &p.scaling_efficiency, "measured, 1 is linear", {0, 1, true}, true},
       {"plan.measured_run", &p.measured_run, "run folder that gives the measured figures", {}, true},
       {"plan.price_per_gpu_hour", &p.price_per_gpu_hour, "price", {0, kBillion}, true},
       {"plan.price_per_gib_month", &p.price_per_gib_month, "price of storage", {0, kBillion}, true},
       {"plan.price_per_gib_traffic", &p.price_per_gib_traffic, "price of traffic", {0, kBillion}, true},
       {"plan.occupancy", &p.occupancy, "used part of the time", {0, 1, true}, true},
       {"plan.build_price_per_gpu", &p.build_price_per_gpu, "price of an own GPU", {0, kBillion}, true},
       {"plan.runs", &p.runs, "runs to be made", {1, kMillion}},
       {"plan.lease_hours", &p.lease_hours, "hours available", {0, kMillion, true}, true},
       {"plan.target_loss", &p.target_loss, "loss to be reached on held-out data", {0, 1000, true}, true},
       {"plan.accepted_loss_minutes", &p.accepted_loss_minutes, "work that may be lost", {0, kMillion, true}},
       {"plan.reserve", &p.reserve, "part of the memory kept free", {0, 0.9}},
       {"inference.batch_size", &r.inference.batch_size, "sequences at once", {1, 1 << 20}},
       {"inference.prompt_tokens", &r.inference.prompt_tokens, "tokens a prompt", {1, 1 << 24}},
       {"inference.new_tokens", &r.inference.new_tokens, "tokens made", {1, 1 << 24}},
       {"allocator.max_split_size",
        BytesMember{&r.allocator.max_split_size_bytes},
        "PyTorch's max_split_size_mb, in bytes",
        {20 << 20, kMaxInt, true},
        true},
       {"allocator.expandable_segments", &r.allocator.expandable_segments, "PyTorch's setting"},
       {"allocator.roundup_power2_divisions",
        &r.allocator.roundup_power2_divisions,
        "PyTorch's setting",
        {1, 1 << 20},
        true},
       {"allocator.garbage_collection_threshold",
        &r.allocator.garbage_collection_threshold,
        "PyTorch's setting",
        {0, 0.9999999, true},
        true}});
}

struct TypeText {
  std::string operator()(bool*) const { return "true or false"; }
  std::string operator()(std::int64_t*) const { return "whole number, "; }
  std::string operator()(std::optional<std::int64_t>*) const { return "whole number, "; }
  std::string operator()(double*) const { return "number, "; }
  std::string operator()(std::optional<double>*) const { return "number, "; }
  std::string operator()(std::string*) const { return "text"; }
  std::string operator()(std::optional<std::string>*) const { return "text"; }
  std::string operator()(std::array<double, 2>*) const { return "list of two numbers, "; }
  std::string operator()(std::optional<std::array<double, 2>>*) const { return "list of two numbers, "; }
  std::string operator()(std::vector<std::string>*) const { return "list of texts"; }
  std::string operator()(std::vector<DataPath>*) const { return "text, list of texts, or list of {path, weight}"; }
  std::string operator()(std::map<std::string, std::int64_t>*) const { return "map to whole numbers, "; }
  std::string operator()(std::map<std::string, double>*) const { return "map to numbers, "; }
  std::string operator()(const BytesMember&) const { return "bytes or a size such as 80GiB"; }
  std::string operator()(const JsonObjectMember&) const { return "map"; }
  std::string operator()(const ChoiceMember& member) const {
    std::string text;
    for (const auto& name : member.names) text += (text.empty() ? "" : " | ") + std::string(name);
    return text;
  }
};

}  // namespace

std::vector<Field> recipe_fields(Recipe& recipe) {
  std::vector<Field> fields;
  add_general(fields, recipe);
  add_training(fields, recipe);
  add_adapters(fields, recipe);
  add_running(fields, recipe);
  add_planning(fields, recipe);
  return fields;
}

std::string range_text(const Range& range) {
  auto number = [](double value) {
    const bool whole = value == static_cast<double>(static_cast<std::int64_t>(std::min(value, 9e18)));
    if (value >= kMaxInt) return std::string("9223372036854775807");
    return whole ? std::to_string(static_cast<std::int64_t>(value)) : format_number(value);
  };
  return (range.low_excluded ? "above " + number(range.low) + ", up to " : number(range.low) + " to ") +
         number(range.high) + (range.reason.empty() ? "" : " (" + range.reason + ")");
}

const Field* find_field(const std::vector<Field>& fields, std::string_view key) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.key == key; });
  return found == fields.end() ? nullptr : &*found;
}

std::string recipe_key_help() {
  Recipe defaults;
  std::string text;
  for (const auto& field : recipe_fields(defaults)) {
    auto type = std::visit(TypeText{}, field.member);
    if (type.ends_with(", ")) type += range_text(field.range);
    const auto value = field_to_json(field);
    text += "  " + field.key + " (" + type + (field.null_allowed ? " or null" : "") +
            (value ? "; default " + dump_json(*value) : "") + "): " + field.help + "\n";
  }
  return text;
}

}  // namespace assay
