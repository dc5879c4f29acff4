#include "model/unit_hooks.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "harness/core/error.h"
#include "tests/support/owned_model.h"
#include "tests/support/step_inputs.h"

namespace assay {
namespace {

// Writes down what it is told: "bf1" is before_forward of unit 1, g gradients, r recompute.
class RecordingHooks final : public UnitHooks {
 public:
  void before_forward(std::size_t unit) override { note("bf", unit); }
  void after_forward(std::size_t unit, const at::Tensor& output) override {
    note("af", unit);
    outputs[unit] = output.sizes().vec();
  }
  void before_gradients(std::size_t unit) override { note("bg", unit); }
  void before_backward(std::size_t unit) override { note("bb", unit); }
  void after_backward(std::size_t unit) override { note("ab", unit); }
  void before_recompute(std::size_t unit) override { note("br", unit); }
  void after_recompute(std::size_t unit) override { note("ar", unit); }

  std::string text;
  std::map<std::size_t, std::vector<std::int64_t>> outputs;

 private:
  void note(const char* what, std::size_t unit) {
    if (!text.empty()) text += ' ';
    text += what;
    text += std::to_string(unit);
  }
};

ModelConfig config_of(bool tied) {
  ModelConfig config = small_model_config();
  config.tie_word_embeddings = tied;
  return config;
}

TransformerOptions options_of(BlockCheckpointing checkpointing) {
  TransformerOptions options;
  options.sequence_length = 16;
  options.checkpointing = checkpointing;
  return options;
}

constexpr BlockCheckpointing kModes[] = {BlockCheckpointing::none, BlockCheckpointing::selective,
                                         BlockCheckpointing::full};

// Units: 0 embedding, 1 and 2 blocks, 3 head.
TEST(UnitHooks, AreCalledInTheOrderOfUse) {
  for (const bool tied : {false, true}) {
    for (const auto mode : kModes) {
      for (const bool frozen_embedding : {false, true}) {
        SCOPED_TRACE(std::to_string(tied) + " " + std::to_string(static_cast<int>(mode)));
        OwnedModel owned(config_of(tied), options_of(mode));
        owned.initialize(7);
        if (frozen_embedding) {
          at::Tensor& embedding = owned.parameters().front()->value;
          embedding = embedding.detach();
        }
        RecordingHooks hooks;
        owned.model.set_hooks(&hooks);
        const StepInputs inputs(2, 16, 300, 1);
        owned.model.backward(owned.model.loss(inputs.ids, inputs.targets, inputs.weights));
        const std::string head = tied ? "bf3 bf0 bg0 af3 af0" : "bf3 bg3 af3";
        const std::string block2 = mode == BlockCheckpointing::none ? "bb2 ab2" : "bb2 br2 ar2 ab2";
        const std::string block1 = mode == BlockCheckpointing::none ? "bb1 ab1" : "bb1 br1 ar1 ab1";
        EXPECT_EQ(hooks.text, "bf0 af0 bf1 af1 bf2 af2 " + head + " bb3 ab3 " + block2 + " " + block1 + " bb0 ab0");
        EXPECT_EQ(hooks.outputs[0].size(), tied ? 1U : 3U);
        EXPECT_EQ(hooks.outputs[1], (std::vector<std::int64_t>{2, 16, 64}));
        EXPECT_EQ(hooks.outputs[3], std::vector<std::int64_t>{1});
      }
    }
  }
}

// F07: nothing is computed again where nothing is differentiated.
TEST(UnitHooks, WithoutGradientsThereIsOnlyForward) {
  for (const bool tied : {false, true}) {
    for (const auto mode : kModes) {
      OwnedModel owned(config_of(tied), options_of(mode));
      owned.initialize(7);
      const StepInputs inputs(2, 16, 300, 1);
      const std::string expected = std::string("bf0 af0 bf1 af1 bf2 af2 ") + (tied ? "bf3 bf0 af3 af0" : "bf3 af3");
      RecordingHooks logits_hooks;
      owned.model.set_hooks(&logits_hooks);
      owned.model.logits(inputs.ids);
      EXPECT_EQ(logits_hooks.text, expected);
      RecordingHooks loss_hooks;
      owned.model.set_hooks(&loss_hooks);
      const at::NoGradGuard no_grad;
      owned.model.loss(inputs.ids, inputs.targets, inputs.weights);
      EXPECT_EQ(loss_hooks.text, expected);
    }
  }
}

// Takes everything away outside of the times that the hooks announce: weights are NaN where they may not be read, and
// so are gradients where none may be added. What is complete is taken at after_backward.
class TakingHooks final : public UnitHooks {
 public:
  explicit TakingHooks(OwnedModel& owned) : units_(owned.model.units()) {
    for (const auto& unit : units_) {
      for (const auto& parameter : unit.parameters) kept_[parameter.name] = parameter.value.detach().clone();
    }
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      take_weights(unit);
      close_gradients(unit);
    }
  }

  void before_forward(std::size_t unit) override { give_weights(unit); }
  void after_forward(std::size_t unit, const at::Tensor& /*output*/) override { take_weights(unit); }
  void before_gradients(std::size_t unit) override { open_gradients(unit); }
  void before_backward(std::size_t unit) override {
    give_weights(unit);
    open_gradients(unit);
  }
  void after_backward(std::size_t unit) override {
    take_weights(unit);
    for (const auto& parameter : units_[unit].parameters) {
      EXPECT_EQ(gradients.count(parameter.name), 0U) << parameter.name << " came twice";
      gradients[parameter.name] = parameter.value.grad().clone();
    }
    close_gradients(unit);
  }

  std::map<std::string, at::Tensor> gradients;

 private:
  void give_weights(std::size_t unit) {
    const at::AutoDispatchBelowADInplaceOrView unseen;
    for (const auto& parameter : units_[unit].parameters) parameter.value.copy_(kept_[parameter.name]);
  }
  void take_weights(std::size_t unit) {
    const at::AutoDispatchBelowADInplaceOrView unseen;
    for (const auto& parameter : units_[unit].parameters) parameter.value.fill_(NAN);
  }
  void open_gradients(std::size_t unit) {
    if (!open_.insert({unit, true}).second) return;
    for (const auto& parameter : units_[unit].parameters) parameter.value.grad().zero_();
  }
  void close_gradients(std::size_t unit) {
    open_.erase(unit);
    for (const auto& parameter : units_[unit].parameters) parameter.value.grad().fill_(NAN);
  }

  std::vector<Unit>& units_;
  std::map<std::string, at::Tensor> kept_;
  std::map<std::size_t, bool> open_;
};

TEST(UnitHooks, WeightsAndGradientsAreNeededOnlyWhereTheySay) {
  for (const bool tied : {false, true}) {
    for (const auto mode : kModes) {
      SCOPED_TRACE(std::to_string(tied) + " " + std::to_string(static_cast<int>(mode)));
      const StepInputs inputs(2, 16, 300, 1);
      OwnedModel plain(config_of(tied), options_of(BlockCheckpointing::none));
      plain.initialize(7);
      const at::Tensor expected_loss = plain.model.loss(inputs.ids, inputs.targets, inputs.weights);
      plain.model.backward(expected_loss);

      OwnedModel owned(config_of(tied), options_of(mode));
      owned.initialize(7);
      TakingHooks hooks(owned);
      owned.model.set_hooks(&hooks);
      const at::Tensor loss = owned.model.loss(inputs.ids, inputs.targets, inputs.weights);
      owned.model.backward(loss);
      EXPECT_TRUE(at::equal(loss, expected_loss));
      for (const auto* parameter : plain.parameters()) {
        EXPECT_TRUE(at::equal(hooks.gradients[parameter->name], parameter->value.grad())) << parameter->name;
      }
    }
  }
}

// Throws at its n-th call.
class ThrowingHooks final : public UnitHooks {
 public:
  explicit ThrowingHooks(int calls_left) : calls_left_(calls_left) {}
  void before_forward(std::size_t /*unit*/) override { count(); }
  void after_forward(std::size_t /*unit*/, const at::Tensor& /*output*/) override { count(); }
  void before_gradients(std::size_t /*unit*/) override { count(); }
  void before_backward(std::size_t /*unit*/) override { count(); }
  void after_backward(std::size_t /*unit*/) override { count(); }
  void before_recompute(std::size_t /*unit*/) override { count(); }
  void after_recompute(std::size_t /*unit*/) override { count(); }

 private:
  void count() {
    if (calls_left_-- == 0) throw Error(ErrorKind::communication, "a rank is gone");
  }
  int calls_left_;
};

TEST(UnitHooks, WhatTheyThrowArrivesAndTheNextStepIsRight) {
  const StepInputs inputs(2, 16, 300, 1);
  OwnedModel owned(config_of(false), options_of(BlockCheckpointing::selective));
  owned.initialize(7);
  const auto step = [&] {
    owned.zero_gradients();
    owned.model.backward(owned.model.loss(inputs.ids, inputs.targets, inputs.weights));
    std::vector<at::Tensor> gradients;
    for (const auto* parameter : owned.parameters()) gradients.push_back(parameter->value.grad().clone());
    return gradients;
  };
  const auto expected = step();
  // 8 calls before and after forward, 1 before gradients, 8 in backward, 4 around what is computed again.
  constexpr int kNumCalls = 21;
  for (int call = 0; call <= kNumCalls; ++call) {
    SCOPED_TRACE(call);
    ThrowingHooks hooks(call);
    owned.model.set_hooks(&hooks);
    if (call < kNumCalls) {
      try {
        step();
        FAIL() << "did not throw";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::communication);
      }
    } else {
      EXPECT_NO_THROW(step());
    }
    owned.model.set_hooks(nullptr);
    const auto gradients = step();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(gradients[i], expected[i]));
  }
}

}  // namespace
}  // namespace assay
