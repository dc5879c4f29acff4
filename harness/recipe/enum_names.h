#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "harness/recipe/recipe.h"

namespace assay {

/// Names of the alternatives as a recipe spells them, in the order of the enumerators.
constexpr auto names_of(Mode) {
  return std::to_array<std::string_view>({"pretrain", "full", "lora", "qlora", "inference"});
}
constexpr auto names_of(DeviceChoice) { return std::to_array<std::string_view>({"cpu", "cuda", "auto"}); }
constexpr auto names_of(ModelInit) { return std::to_array<std::string_view>({"random", "load"}); }
constexpr auto names_of(AttentionChoice) {
  return std::to_array<std::string_view>({"auto", "flash", "efficient", "cudnn", "math"});
}
constexpr auto names_of(DataFormat) {
  return std::to_array<std::string_view>({"auto", "text", "jsonl", "llmc", "nanogpt", "llmq", "batches", "synthetic"});
}
constexpr auto names_of(Precision) { return std::to_array<std::string_view>({"fp32", "bf16", "fp16", "pure_bf16"}); }
constexpr auto names_of(ActivationCheckpointing) {
  return std::to_array<std::string_view>({"none", "selective", "full"});
}
constexpr auto names_of(OptimizerName) { return std::to_array<std::string_view>({"adamw", "sgd"}); }
constexpr auto names_of(ScheduleName) {
  return std::to_array<std::string_view>({"cosine", "linear", "constant", "wsd"});
}
constexpr auto names_of(WarmupConvention) { return std::to_array<std::string_view>({"transformers", "torchtitan"}); }
constexpr auto names_of(StrategyName) {
  return std::to_array<std::string_view>({"none", "ddp", "zero1", "zero2", "fsdp"});
}
constexpr auto names_of(BackendChoice) { return std::to_array<std::string_view>({"auto", "gloo", "nccl"}); }
constexpr auto names_of(CpuBinding) { return std::to_array<std::string_view>({"auto", "none"}); }
constexpr auto names_of(QuantizationType) { return std::to_array<std::string_view>({"none", "nf4"}); }
constexpr auto names_of(FloatType) { return std::to_array<std::string_view>({"fp32", "bf16"}); }

/// "ddp" for StrategyName::ddp: as written in recipes, events and reports.
template <class E>
requires requires(E value) { names_of(value); }
constexpr std::string_view name_of(E value) { return names_of(value)[static_cast<std::size_t>(value)]; }

}  // namespace assay
