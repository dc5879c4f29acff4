#include "tests/device/golden_autograd.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace assay::golden {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;
using HookFactory = std::function<std::unique_ptr<SavedVariableHooks>()>;

thread_local std::vector<HookFactory> hook_factories;

// LibTorch asks its engine for hooks of saved tensors; Python's engine has them, the plain one does not.
class HookedEngine final : public Engine {
 public:
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return hook_factories.empty() ? nullptr : hook_factories.back()();
  }
};

Engine& hooked_engine() {
  static auto* const engine = new HookedEngine;  // never destroyed: its threads outlive main
  return *engine;
}

[[maybe_unused]] const bool is_installed = (torch::autograd::set_default_engine_stub(&hooked_engine), true);

struct HookScope {
  explicit HookScope(HookFactory factory) { hook_factories.push_back(std::move(factory)); }
  ~HookScope() { hook_factories.pop_back(); }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
};

struct StopRecomputation {};

struct Holder {
  at::Tensor value;
};

struct Frame {
  std::function<at::Tensor(const at::Tensor&)> block;
  at::Tensor x;
  std::vector<std::weak_ptr<Holder>> holders;
  std::size_t num_recomputed = 0;
  bool is_recomputed = false;
};

class RecomputeHooks final : public SavedVariableHooks {
 public:
  explicit RecomputeHooks(Frame& frame) : frame_(frame) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    value_ = tensor.detach();
    if (const auto holder = frame_.holders[frame_.num_recomputed].lock()) holder->value = value_;
    if (++frame_.num_recomputed == frame_.holders.size()) throw StopRecomputation();
  }
  at::Tensor call_unpack_hook() override { return value_; }

 private:
  Frame& frame_;
  at::Tensor value_;
};

void recompute(Frame& frame) {
  const at::AutoGradMode with_gradients(true);
  const HookScope scope([&frame] { return std::make_unique<RecomputeHooks>(frame); });
  try {
    frame.block(frame.x);
  } catch (const StopRecomputation&) {
  }
  frame.is_recomputed = true;
}

class CheckpointHooks final : public SavedVariableHooks {
 public:
  explicit CheckpointHooks(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}

  void call_pack_hook(const at::Tensor& /*tensor*/) override { frame_->holders.push_back(holder_); }
  at::Tensor call_unpack_hook() override {
    if (!frame_->is_recomputed) recompute(*frame_);
    return std::move(holder_->value);
  }

 private:
  std::shared_ptr<Frame> frame_;
  std::shared_ptr<Holder> holder_ = std::make_shared<Holder>();
};

thread_local int autocast_depth = 0;
thread_local std::unordered_map<const c10::TensorImpl*, at::Tensor> weight_casts;

}  // namespace

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& x) {
  const auto frame = std::make_shared<Frame>();
  frame->block = block;
  frame->x = x;
  const HookScope scope([&frame] { return std::make_unique<CheckpointHooks>(frame); });
  return block(x);
}

AutocastScope::AutocastScope(bool enabled) : enabled_(enabled) { autocast_depth += enabled ? 1 : 0; }

AutocastScope::~AutocastScope() {
  if (enabled_ && --autocast_depth == 0) weight_casts.clear();
}

at::Tensor autocast(const at::Tensor& x) {
  if (autocast_depth == 0 || !x.defined() || x.scalar_type() == at::kBFloat16) return x;
  if (!x.is_leaf() || !x.requires_grad()) return x.to(at::kBFloat16);
  at::Tensor& cast = weight_casts[x.unsafeGetTensorImpl()];
  if (!cast.defined()) cast = x.to(at::kBFloat16);
  return cast;
}

}  // namespace assay::golden
