#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

#include "tests/device/golden_autograd.h"
#include "tests/device/golden_model.h"

namespace assay::golden {
namespace {

using at::Tensor;

// Adds a finished bf16 gradient to its fp32 buffer, then drops it.
class AddToMaster final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AddToMaster(Tensor master) : master_(std::move(master)) {}
  void operator()(const Tensor& parameter) override {
    const at::NoGradGuard no_grad;
    master_.mutable_grad().add_(parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  Tensor master_;
};

// torch.optim.AdamW: what it allocates. The updates themselves are in place.
class AdamW {
 public:
  AdamW(std::vector<Tensor> parameters, bool is_fused) : parameters_(std::move(parameters)), is_fused_(is_fused) {}

  void step() {
    if (states_.empty()) make_states();
    if (is_fused_) return;
    std::vector<Tensor> roots;
    for (const auto& state : states_) roots.push_back(at::empty_like(state.square));
  }

  void zero_grad() {
    for (const auto& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  struct State {
    Tensor step;  ///< on the device if fused
    Tensor mean;
    Tensor square;
  };

  void make_states() {
    for (const auto& parameter : parameters_) {
      State state;
      if (is_fused_) state.step = at::empty({}, parameter.options().dtype(at::kFloat));
      state.mean = at::empty_like(parameter);
      state.square = at::empty_like(parameter);
      states_.push_back(std::move(state));
    }
  }

  std::vector<Tensor> parameters_;
  bool is_fused_;
  std::vector<State> states_;
};

struct Batch {
  Tensor ids;
  Tensor labels;
};

std::vector<Tensor> make_masters(const Program& program, const std::vector<Tensor>& parameters) {
  std::vector<Tensor> masters;
  if (!program.policy.starts_with("bf16_master")) return masters;
  const auto in_fp32 = [](const Tensor& like) { return at::empty(like.sizes(), like.options().dtype(at::kFloat)); };
  for (const auto& parameter : parameters) masters.push_back(in_fp32(parameter));
  if (program.policy != "bf16_master_fp32grad") return masters;
  for (const auto& master : masters) master.mutable_grad() = in_fp32(master);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i], std::make_unique<AddToMaster>(masters[i]));
  }
  return masters;
}

void move_gradients_to_masters(const std::vector<Tensor>& parameters, const std::vector<Tensor>& masters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    masters[i].mutable_grad() = parameters[i].grad().to(at::kFloat);
    parameters[i].mutable_grad().reset();
  }
}

}  // namespace

void run(const Program& program, int num_steps, const std::function<void(const std::string&)>& mark) {
  const Model model(program);
  const auto parameters = model.trainable_parameters();
  const auto masters = make_masters(program, parameters);
  AdamW optimizer(masters.empty() ? parameters : masters, program.has_fused_adamw);
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < program.gradient_accumulation; ++i) {
    const auto tokens = [&] {
      return at::empty({program.micro_batch_size, program.sequence_length}, at::device(at::kMeta).dtype(at::kLong));
    };
    Batch batch;
    batch.ids = tokens();
    batch.labels = tokens();
    batches.push_back(std::move(batch));
  }
  for (int step = 0; step < num_steps; ++step) {
    mark("begin");
    for (std::size_t i = 0; i < batches.size(); ++i) {
      Tensor loss;
      {
        const AutocastScope scope(program.has_autocast());
        loss = model.forward(batches[i].ids, batches[i].labels);
      }
      loss = loss / program.gradient_accumulation;
      mark("forward" + std::to_string(i));
      torch::autograd::backward({loss}, {});
      loss.reset();
      mark("backward" + std::to_string(i));
    }
    if (program.policy == "bf16_master") move_gradients_to_masters(parameters, masters);
    optimizer.step();
    mark("optimizer");
    if (program.policy != "bf16_master_fp32grad") optimizer.zero_grad();
    mark("zero_grad");
  }
}

}  // namespace assay::golden
