#include "harness/train/load_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <set>

#include "checkpoint/model_folder.h"
#include "harness/core/error.h"
#include "harness/core/memory_scope.h"
#include "harness/core/text.h"
#include "harness/train/tensor_bytes.h"

namespace assay {
namespace {

bool is_float(const std::string& dtype) { return dtype == "F32" || dtype == "F16" || dtype == "BF16"; }

// A head in the file beside a tied embedding is allowed if both hold the same.
std::optional<std::string> tied_head_problem(const ModelFolder& files, Transformer& model) {
  if (!model.config().tie_word_embeddings) return "the model has no such parameter";
  const at::Tensor head = tensor_over(*files.find("lm_head.weight"));
  const at::Tensor embedding = tensor_over(*files.find(model.units().front().parameters[0].name));
  if (head.sizes() == embedding.sizes() && at::equal(head.to(at::kFloat), embedding.to(at::kFloat))) {
    return std::nullopt;
  }
  return "differs from model.embed_tokens.weight though tie_word_embeddings is true; set model.config "
         "{tie_word_embeddings: false} or remove it";
}

}  // namespace

void load_model_weights(Transformer& model, const std::filesystem::path& folder, const ParameterWriter& write) {
  const UntrackedScope untracked;
  const at::NoGradGuard no_grad;
  const ModelFolder files(folder);
  std::string problems;
  const auto note = [&](const std::string& name, const std::string& problem) {
    problems += "\n  " + name + ": " + problem;
  };
  std::set<std::string> placed;
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    const auto& parameters = model.units()[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      placed.insert(parameter.name);
      const auto found = files.find(parameter.name);
      if (!found) {
        note(parameter.name, "is missing");
      } else if (found->info.shape != parameter.shape) {
        note(parameter.name, "has shape " + text_of_sizes(found->info.shape) + ", config.json asks for " +
                                 text_of_sizes(parameter.shape));
      } else if (!is_float(found->info.dtype)) {
        note(parameter.name, "has dtype " + found->info.dtype + "; F32, F16 and BF16 can be loaded");
      } else {
        write(unit, i, tensor_over(*found));
      }
    }
  }
  for (const auto& name : files.names()) {
    if (placed.count(name) > 0) continue;
    std::optional<std::string> problem = "the model has no such parameter";
    if (name == "lm_head.weight" && problems.empty()) {
      problem = tied_head_problem(files, model);
    }
    if (problem) note(name, *problem);
  }
  if (!problems.empty())
    throw Error(ErrorKind::data, "the weights in " + folder.string() + " do not fit the model:" + problems);
}

}  // namespace assay
