#include "harness/train/load_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <set>

#include "checkpoint/model_folder.h"
#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "harness/train/tensor_bytes.h"

namespace assay {
namespace {

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const auto size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

bool is_float(const std::string& dtype) { return dtype == "F32" || dtype == "F16" || dtype == "BF16"; }

// A head in the file beside a tied embedding is allowed if both hold the same.
std::optional<std::string> tied_head_problem(const TensorView& head, const Transformer& model,
                                             const at::Tensor& embedding) {
  if (!model.config().tie_word_embeddings) return "the model has no such parameter";
  if (head.info.shape == embedding.sizes().vec() &&
      at::equal(tensor_over(head).to(at::kFloat), embedding.to(at::kFloat))) {
    return std::nullopt;
  }
  return "differs from model.embed_tokens.weight though tie_word_embeddings is true; set model.config "
         "{tie_word_embeddings: false} or remove it";
}

}  // namespace

void load_model_weights(Transformer& model, const std::filesystem::path& folder) {
  const UntrackedScope untracked;
  const at::NoGradGuard no_grad;
  const ModelFolder files(folder);
  std::string problems;
  const auto note = [&](const std::string& name, const std::string& problem) {
    problems += "\n  " + name + ": " + problem;
  };
  std::set<std::string> placed;
  for (auto& unit : model.units()) {
    for (auto& parameter : unit.parameters) {
      placed.insert(parameter.name);
      const auto found = files.find(parameter.name);
      if (!found) {
        note(parameter.name, "is missing");
      } else if (found->info.shape != parameter.shape) {
        note(parameter.name,
             "has shape " + text_of(found->info.shape) + ", config.json asks for " + text_of(parameter.shape));
      } else if (!is_float(found->info.dtype)) {
        note(parameter.name, "has dtype " + found->info.dtype + "; F32, F16 and BF16 can be loaded");
      } else {
        parameter.value.copy_(tensor_over(*found));
      }
    }
  }
  for (const auto& name : files.names()) {
    if (placed.count(name) > 0) continue;
    std::optional<std::string> problem = "the model has no such parameter";
    if (name == "lm_head.weight" && problems.empty()) {
      problem = tied_head_problem(*files.find(name), model, model.units().front().parameters[0].value);
    }
    if (problem) note(name, *problem);
  }
  if (!problems.empty())
    throw Error(ErrorKind::data, "the weights in " + folder.string() + " do not fit the model:" + problems);
}

}  // namespace assay
