#include "model/block_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

#include "harness/core/error.h"
#include "model/functions.h"

namespace assay {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kKept = "kept";

// Taken out of the context by backward, so that each tensor dies when it was used and not with the node.
struct Kept : torch::CustomClassHolder {
  CheckpointedBlock block;
  std::optional<ActivationTape> tape;
  at::Tensor x;

  ActivationTape* tape_or_null() { return tape ? &*tape : nullptr; }
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const CheckpointedBlock& block,
                            bool keeps_tape) {
    auto kept = c10::make_intrusive<Kept>();
    kept->block = block;
    kept->x = x.detach();
    if (keeps_tape) kept->tape.emplace();
    at::Tensor y;
    {
      const auto body = block.body(kept->x, kept->tape_or_null());
      y = body.residual + ops::linear(body.activated, block.last_weight(), block.kernels);
    }
    context->saved_data[kKept] = c10::IValue::make_capsule(std::move(kept));
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto found = context->saved_data.find(kKept);
    ASSAY_CHECK(found != context->saved_data.end());  // backward comes once
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(found->second.toCapsule());
    context->saved_data.clear();

    at::Tensor x = std::move(kept->x).requires_grad_();
    torch::autograd::backward({recompute(*kept, x)}, {grads[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }

  static at::Tensor recompute(Kept& kept, const at::Tensor& x) {
    const at::AutoGradMode with_gradients(true);
    kept.block.before_recompute();
    if (kept.tape) kept.tape->replay();
    const auto body = kept.block.body(x, kept.tape_or_null());
    const at::Tensor y =
        ops::unevaluated_linear(body.activated, kept.block.last_weight(), body.residual, kept.block.kernels);
    kept.block.after_recompute();
    return y;
  }
};

}  // namespace

at::Tensor run_checkpointed(const CheckpointedBlock& block, bool keeps_tape, const at::Tensor& x) {
  ASSAY_CHECK(x.requires_grad());
  return CheckpointFunction::apply(x, block, keeps_tape);
}

}  // namespace assay
