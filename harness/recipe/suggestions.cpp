#include "harness/recipe/suggestions.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/nearest.h"

namespace assay {
namespace {

/// What other tools (transformers, axolotl, LLaMA-Factory, torchtune, torchtitan, litgpt, NeMo, llm.c, DeepSpeed) call
/// it, and the key or option here.
constexpr auto kForeignKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"model_name_or_path", "model.path"},
    {"base_model", "model.path"},
    {"model_name", "model.path"},
    {"hf_assets_path", "model.path"},
    {"checkpoint_dir", "model.path"},
    {"attn_implementation", "model.attention"},
    {"flash_attention", "model.attention"},
    {"attn", "model.attention"},
    {"tokenizer_name", "tokenizer.path"},
    {"tokenizer_path", "tokenizer.path"},
    {"dataset", "data.path"},
    {"datasets", "data.path"},
    {"train_file", "data.path"},
    {"train_files", "data.path"},
    {"data_path", "data.path"},
    {"eval_file", "data.eval_path"},
    {"validation_file", "data.eval_path"},
    {"eval_dataset", "data.eval_path"},
    {"max_seq_length", "data.sequence_length"},
    {"max_seq_len", "data.sequence_length"},
    {"max_length", "data.sequence_length"},
    {"max_context_length", "data.sequence_length"},
    {"seq_len", "data.sequence_length"},
    {"seq_length", "data.sequence_length"},
    {"sequence_len", "data.sequence_length"},
    {"cutoff_len", "data.sequence_length"},
    {"sample_packing", "data.packing"},
    {"packed", "data.packing"},
    {"packed_sequence", "data.packing"},
    {"chat_template", "data.template"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"per_gpu_train_batch_size", "train.micro_batch_size"},
    {"train_micro_batch_size_per_gpu", "train.micro_batch_size"},
    {"local_batch_size", "train.micro_batch_size"},
    {"batch_size", "train.micro_batch_size"},
    {"micro_batch", "train.micro_batch_size"},
    {"train_batch_size", "train.global_batch_size"},
    {"grad_accumulation", "train.gradient_accumulation_steps"},
    {"grad_accumulation_steps", "train.gradient_accumulation_steps"},
    {"accumulate_grad_batches", "train.gradient_accumulation_steps"},
    {"gradient_accumulation", "train.gradient_accumulation_steps"},
    {"num_train_epochs", "train.epochs"},
    {"num_epochs", "train.epochs"},
    {"max_epochs", "train.epochs"},
    {"steps", "train.max_steps"},
    {"total_steps", "train.max_steps"},
    {"num_steps", "train.max_steps"},
    {"train_steps", "train.max_steps"},
    {"clip_grad_norm", "train.max_grad_norm"},
    {"gradient_clipping", "train.max_grad_norm"},
    {"grad_clip", "train.max_grad_norm"},
    {"max_norm", "train.max_grad_norm"},
    {"dtype", "train.precision"},
    {"torch_dtype", "train.precision"},
    {"mixed_precision", "train.precision"},
    {"bf16", "train.precision"},
    {"fp16", "train.precision"},
    {"gradient_checkpointing", "train.activation_checkpointing"},
    {"enable_activation_checkpointing", "train.activation_checkpointing"},
    {"activation_checkpoint", "train.activation_checkpointing"},
    {"recompute_granularity", "train.activation_checkpointing"},
    {"eval_steps", "train.eval_interval"},
    {"val_interval", "train.eval_interval"},
    {"lr", "optimizer.learning_rate"},
    {"optim", "optimizer.name"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"adam_epsilon", "optimizer.eps"},
    {"lr_scheduler", "schedule.name"},
    {"lr_scheduler_type", "schedule.name"},
    {"lr_schedule", "schedule.name"},
    {"scheduler", "schedule.name"},
    {"warmup_ratio", "schedule.warmup_steps"},
    {"num_warmup_steps", "schedule.warmup_steps"},
    {"lr_warmup_steps", "schedule.warmup_steps"},
    {"warmup", "schedule.warmup_steps"},
    {"min_lr", "schedule.min_lr_ratio"},
    {"min_lr_factor", "schedule.min_lr_ratio"},
    {"lora_rank", "lora.r"},
    {"lora_r", "lora.r"},
    {"rank", "lora.r"},
    {"alpha", "lora.lora_alpha"},
    {"lora_target", "lora.target_modules"},
    {"lora_target_modules", "lora.target_modules"},
    {"lora_target_linear", "lora.target_modules"},
    {"lora_attn_modules", "lora.target_modules"},
    {"lora_modules_to_save", "lora.modules_to_save"},
    {"adapter", "mode"},
    {"adapter_name_or_path", "lora.adapter_path"},
    {"finetuning_type", "mode"},
    {"recipe", "mode"},
    {"load_in_4bit", "quantization.type"},
    {"quantization_bit", "quantization.type"},
    {"quantize", "quantization.type"},
    {"bnb_4bit_quant_type", "quantization.type"},
    {"bnb_4bit_use_double_quant", "quantization.double_quant"},
    {"world_size", "parallel.nproc_per_node"},
    {"num_gpus", "parallel.nproc_per_node"},
    {"num_processes", "parallel.nproc_per_node"},
    {"devices", "parallel.nproc_per_node"},
    {"gpus", "parallel.nproc_per_node"},
    {"fsdp", "parallel.strategy"},
    {"deepspeed", "parallel.strategy"},
    {"zero_level", "parallel.strategy"},
    {"zero_stage", "parallel.strategy"},
    {"data_parallel_shard_degree", "parallel.strategy"},
    {"fsdp_reshard_after_forward", "parallel.reshard_after_forward"},
    {"mixed_precision_reduce", "parallel.reduce_dtype"},
    {"save_steps", "checkpoint.interval"},
    {"save_interval", "checkpoint.interval"},
    {"save_every_n_steps", "checkpoint.interval"},
    {"ckpt_interval", "checkpoint.interval"},
    {"save_total_limit", "checkpoint.keep_latest"},
    {"keep_last_n_checkpoints", "checkpoint.keep_latest"},
    {"keep_latest_k", "checkpoint.keep_latest"},
    {"save_top_k", "checkpoint.keep_best"},
    {"async_mode", "checkpoint.async"},
    {"enable_async_checkpointing", "checkpoint.async"},
    {"resume_from_checkpoint", "resume"},
    {"auto_resume_from_checkpoints", "resume"},
    {"output_dir", "--output DIR"},
    {"out_dir", "--output DIR"},
    {"dump_folder", "--output DIR"},
});

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::string section_of(const std::string& key) {
  const auto dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

std::string foreign_key(const std::string& key) {
  const auto found = std::find_if(kForeignKeys.begin(), kForeignKeys.end(),
                                  [&](const auto& row) { return edit_distance(row.first, last_part(key)) == 0; });
  return found == kForeignKeys.end() ? "" : std::string(found->second);
}

/// By the distance of the last parts, then the same section, then the distance of the sections.
std::string nearest_key(const std::vector<Field>& fields, const std::string& key) {
  std::vector<std::string> candidates;
  for (const auto& field : fields) {
    candidates.push_back(field.key);
    const auto section = section_of(field.key);
    if (!section.empty() && candidates.end() == std::find(candidates.begin(), candidates.end(), section)) {
      candidates.push_back(section);
    }
  }
  const auto distance = [&](const std::string& candidate) {
    return std::pair(edit_distance(last_part(key), last_part(candidate)),
                     edit_distance(section_of(key), section_of(candidate)));
  };
  const auto best = std::min_element(candidates.begin(), candidates.end(), [&](const auto& left, const auto& right) {
    return distance(left) < distance(right);
  });
  return nearest_name(last_part(key), {last_part(*best)}).empty() ? "" : *best;
}

}  // namespace

void check_key(const std::string& option, const std::string& key) {
  Recipe recipe;
  const auto fields = recipe_fields(recipe);
  if (find_field(fields, key) != nullptr) return;
  const bool is_section =
      std::any_of(fields.begin(), fields.end(), [&](const Field& field) { return field.key.starts_with(key + "."); });
  auto text = is_section ? "is a section; name one of its keys: " + section_example(fields, key)
                         : unknown_key_text(fields, key);
  if (key.starts_with("model.config.")) text = "a model's keys are compared as a whole; write model.config";
  throw Error(ErrorKind::usage, option + " " + key + ": " + text);
}

std::string section_example(const std::vector<Field>& fields, const std::string& section) {
  for (const auto& field : fields) {
    if (!field.key.starts_with(section + ".")) continue;
    return last_part(section) + ": {" + field.key.substr(section.size() + 1) + ": ...}";
  }
  return section + ": {}";
}

std::string unknown_key_text(const std::vector<Field>& fields, const std::string& key) {
  if (find_field(fields, key) != nullptr) {
    return "dotted keys are for the command line; write " + section_of(key) + ": {" + last_part(key) + ": ...}";
  }
  auto suggestion = foreign_key(key);
  if (suggestion.empty() || suggestion == key) suggestion = nearest_key(fields, key);
  return "unknown key" +
         (suggestion.empty() ? "; assay validate --keys lists all keys" : "; did you mean " + suggestion + "?");
}

}  // namespace assay
