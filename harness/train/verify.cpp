#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "checkpoint/safetensors.h"
#include "harness/core/error.h"
#include "harness/core/json.h"
#include "harness/train/job.h"
#include "harness/train/load_model.h"
#include "harness/train/rank_context.h"
#include "harness/train/step_batch.h"
#include "harness/train/tensor_bytes.h"

namespace assay {
namespace {

/// Logits absolute, gradients relative in the L2 norm, loss absolute.
struct Tolerances {
  double atol;
  double rtol;
  double loss_atol;
};

struct DefaultTolerances {
  const char* dtype;  ///< of the reference, as in a safetensors file
  Tolerances tolerances;
};

// The model computes in fp32. A reference of transformers in bf16 is up to 0.14 away from the same in fp32 (logits up
// to 5, two layers); allowed is twice that. fp16 has three bits more.
constexpr std::array<DefaultTolerances, 3> kDefaults{
    {{"F32", {5e-5, 1e-4, 1e-5}}, {"F16", {0.04, 0.0125, 0.0025}}, {"BF16", {0.3, 0.1, 0.02}}}};

struct Comparison {
  double max_abs_error = 0;
  double max_rel_error = 0;      ///< of an element: |mine - theirs| / |theirs|
  double relative_l2_error = 0;  ///< the same of the whole, in the L2 norm
  double cosine = 1;
};

Comparison compare(const at::Tensor& mine, const at::Tensor& theirs) {
  const at::Tensor a = mine.to(at::kDouble).reshape({-1});
  const at::Tensor b = theirs.to(at::kDouble).reshape({-1});
  const auto norm = [](const at::Tensor& x) { return x.norm().item<double>(); };
  Comparison result;
  const at::Tensor errors = (a - b).abs();
  result.max_abs_error = errors.max().item<double>();
  result.max_rel_error = (errors / b.abs().clamp_min(std::numeric_limits<float>::min())).max().item<double>();
  result.relative_l2_error = norm(b) > 0 ? norm(a - b) / norm(b) : norm(a);
  result.cosine = norm(a) > 0 && norm(b) > 0 ? a.dot(b).item<double>() / (norm(a) * norm(b)) : 1;
  return result;
}

/// A reference file: inputs, and the values another program computed from them.
class Reference {
 public:
  explicit Reference(const std::filesystem::path& path) : path_(path), file_(path) {}

  std::optional<at::Tensor> find(const std::string& name) const {
    const TensorInfo* info = file_.find(name);
    if (info == nullptr) return std::nullopt;
    const auto bytes = file_.bytes(*info);
    const at::Tensor unaligned = tensor_over(*info, bytes);
    const at::Tensor copy = at::empty(unaligned.sizes(), unaligned.options());
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    return copy;
  }

  /// The defaults for the least exact dtype among the values to be compared.
  const DefaultTolerances& defaults() const {
    std::size_t widest = 0;
    for (const auto& info : file_.tensors()) {
      for (std::size_t i = widest; i < kDefaults.size(); ++i) {
        if (info.dtype == kDefaults[i].dtype) widest = i;
      }
    }
    return kDefaults[widest];
  }

  std::vector<std::int64_t> ids(const std::string& name, std::vector<std::int64_t>& shape) const {
    const auto tensor = find(name);
    if (!tensor || tensor->scalar_type() != at::kLong || tensor->dim() != 2) {
      throw Error(ErrorKind::data, path_.string() + " needs " + name + ", int64 [B, L]");
    }
    shape = tensor->sizes().vec();
    const auto* data = tensor->const_data_ptr<std::int64_t>();
    return {data, data + tensor->numel()};
  }

  std::vector<std::string> gradient_names() const {
    std::vector<std::string> names;
    for (const auto& info : file_.tensors()) {
      if (info.name.rfind("grad.", 0) == 0) names.push_back(info.name.substr(5));
    }
    return names;
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  SafetensorsFile file_;
};

class Verification {
 public:
  explicit Verification(const Job& job)
      : reference_(job.options.at("reference").get<std::string>()),
        tolerances_(tolerances_of(job.options, reference_.defaults().tolerances)),
        device_(make_cpu_device(1)) {
    const std::filesystem::path folder = job.options.at("model").get<std::string>();
    config_ = load_model_config(folder, job.options.value("config", "{}"));
    std::vector<std::int64_t> labels_shape;
    auto input_ids = reference_.ids("input_ids", shape_);
    auto labels = reference_.ids("labels", labels_shape);
    if (labels_shape != shape_)
      throw Error(ErrorKind::data, reference_.path().string() + ": input_ids and labels differ in shape");
    for (const auto id : input_ids) check_id(id, "input_ids", false);
    for (const auto id : labels) check_id(id, "labels", true);
    rows_ = make_given_rows(std::move(input_ids), std::move(labels), shape_[1], reference_.path().string());
    model_ = std::make_unique<Transformer>(config_, TransformerOptions{{}, shape_[1], 1024}, *device_);
    for (auto& unit : model_->units()) {
      for (auto& parameter : unit.parameters) parameter.value = at::empty(parameter.shape);
    }
    load_model_weights(*model_, folder, [this](std::size_t unit, std::size_t i, const at::Tensor& values) {
      model_->units()[unit].parameters[i].value.copy_(values);
    });
    for (auto& unit : model_->units()) {
      for (auto& parameter : unit.parameters) parameter.value.requires_grad_();
    }
  }

  int run() {
    const StepBatch batch = load_step_batch(*rows_, 0, {shape_[0], 1, 0, 1}, *device_);
    const auto& inputs = batch.micro_batches.front();
    if (const auto logits = reference_.find("logits")) {
      const at::NoGradGuard no_grad;
      add("logits", model_->logits(inputs.input_ids), *logits,
          [&](const Comparison& c) { return c.max_abs_error <= tolerances_.atol; });
    }
    const at::Tensor loss = model_->loss(inputs.input_ids, inputs.targets, inputs.weights);
    loss.backward();
    add_loss(loss.item<double>());
    for (const auto& name : reference_.gradient_names()) {
      add("grad." + name, gradient(name), *reference_.find("grad." + name),
          [&](const Comparison& c) { return c.relative_l2_error <= tolerances_.rtol; });
    }
    if (num_compared_ == 0) {
      throw Error(ErrorKind::data,
                  reference_.path().string() + " holds none of logits, loss and grad.<parameter>: nothing to compare");
    }
    result_["equal_within"] = equal_;
    result_["tolerances"] = {{"dtype", reference_.defaults().dtype},
                             {"atol", tolerances_.atol},
                             {"rtol", tolerances_.rtol},
                             {"loss_atol", tolerances_.loss_atol}};
    std::printf("%s\n", dump_json(result_).c_str());
    return equal_ ? exit_done : exit_rejected;
  }

 private:
  static Tolerances tolerances_of(const Json& options, const Tolerances& defaults) {
    const auto tolerance = [&](const char* key, double fallback) {
      const auto found = options.find(key);
      return found == options.end() || found->is_null() ? fallback : found->get<double>();
    };
    return {tolerance("atol", defaults.atol), tolerance("rtol", defaults.rtol),
            tolerance("loss_atol", defaults.loss_atol)};
  }

  void check_id(std::int64_t id, const char* what, bool may_ignore) const {
    if ((id < 0 && !(may_ignore && id == kIgnoredLabel)) || id >= config_.vocab_size) {
      throw Error(ErrorKind::data, reference_.path().string() + ": " + what + " hold " + std::to_string(id) +
                                       ", the vocabulary has " + std::to_string(config_.vocab_size));
    }
  }

  at::Tensor gradient(const std::string& name) const {
    for (auto& unit : model_->units()) {
      for (const auto& parameter : unit.parameters) {
        if (parameter.name == name) return parameter.value.grad();
      }
    }
    throw Error(ErrorKind::data, reference_.path().string() + ": grad." + name + " names no parameter of the model");
  }

  template <class Within>
  void add(const std::string& name, const at::Tensor& mine, const at::Tensor& theirs, Within within) {
    if (mine.sizes() != theirs.sizes())
      throw Error(ErrorKind::data, reference_.path().string() + ": " + name + " has another shape than the model's");
    const Comparison comparison = compare(mine, theirs);
    const bool equal = within(comparison);
    equal_ = equal_ && equal;
    ++num_compared_;
    Json row{{"name", name}};
    set_number(row, "max_abs_error", comparison.max_abs_error);
    set_number(row, "max_rel_error", comparison.max_rel_error);
    set_number(row, "relative_l2_error", comparison.relative_l2_error);
    set_number(row, "cosine", comparison.cosine);
    row["equal_within"] = equal;
    result_["tensors"].push_back(row);
  }

  void add_loss(double loss) {
    set_number(result_, "loss", loss);
    result_["reference_loss"] = nullptr;
    const auto theirs = reference_.find("loss");
    if (!theirs) {
      result_["reference_loss_reason"] = "the reference file has none";
      return;
    }
    const auto reference_loss = theirs->to(at::kDouble).item<double>();
    set_number(result_, "reference_loss", reference_loss);
    equal_ = equal_ && std::fabs(loss - reference_loss) <= tolerances_.loss_atol;
    ++num_compared_;
  }

  Reference reference_;
  Tolerances tolerances_;
  std::unique_ptr<Device> device_;
  ModelConfig config_;
  std::vector<std::int64_t> shape_;
  std::unique_ptr<RowSource> rows_;
  std::unique_ptr<Transformer> model_;
  Json result_{{"equal_within", false}, {"tensors", Json::array()}};
  bool equal_ = true;
  int num_compared_ = 0;
};

}  // namespace

int run_verify(const Job& job) { return Verification(job).run(); }

}  // namespace assay
