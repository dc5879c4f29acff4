#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "harness/memory/tracking_allocator.h"
#include "model/transformer.h"
#include "tests/support/owned_model.h"
#include "tests/support/step_inputs.h"

namespace assay {
namespace {

using Tensors = std::vector<at::Tensor>;

TransformerOptions options_of(BlockCheckpointing checkpointing) {
  TransformerOptions options;
  options.sequence_length = 16;
  options.checkpointing = checkpointing;
  return options;
}

// Losses of micro-steps, then all gradients. Successive micro-batches differ in length (F09).
Tensors run_step(OwnedModel& owned, int num_micro_steps = 3, double grad_scale = 1) {
  constexpr std::int64_t kLengths[] = {8, 16, 12};
  Tensors results;
  for (int i = 0; i < num_micro_steps; ++i) {
    const StepInputs inputs(2, kLengths[i], 300, 1 + static_cast<std::uint64_t>(i));
    const at::Tensor loss = owned.model.loss(inputs.ids, inputs.targets, inputs.weights, grad_scale);
    owned.model.backward(loss);
    results.push_back(loss.detach());
  }
  for (const auto* parameter : owned.parameters()) results.push_back(parameter->value.grad().clone());
  return results;
}

void expect_same_bits(const Tensors& mine, const Tensors& theirs) {
  ASSERT_EQ(mine.size(), theirs.size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(at::equal(mine[i], theirs[i])) << "result " << i;
    EXPECT_GT(theirs[i].abs().max().item<double>(), 0) << "result " << i;
  }
}

class Checkpointing : public ::testing::TestWithParam<std::tuple<BlockCheckpointing, at::ScalarType>> {
 protected:
  BlockCheckpointing mode = std::get<0>(GetParam());
  at::ScalarType dtype = std::get<1>(GetParam());
};

TEST_P(Checkpointing, HasTheBitsOfNone) {
  for (const bool tied : {false, true}) {
    for (const auto gradients : {std::optional(at::kFloat), std::optional(dtype), std::optional<at::ScalarType>()}) {
      for (const int num_micro_steps : {1, 3}) {
        SCOPED_TRACE(std::string(tied ? "tied, " : "") + (gradients ? at::toString(*gradients) : "no gradients") +
                     ", " + std::to_string(num_micro_steps) + " micro-steps");
        ModelConfig config = small_model_config();
        config.tie_word_embeddings = tied;
        OwnedModel none(config, options_of(BlockCheckpointing::none), {dtype, gradients});
        OwnedModel checkpointed(config, options_of(mode), {dtype, gradients});
        none.initialize(7);
        checkpointed.initialize(7);
        const double grad_scale = dtype == at::kHalf ? 1024 : 1;
        expect_same_bits(run_step(checkpointed, num_micro_steps, grad_scale),
                         run_step(none, num_micro_steps, grad_scale));
      }
    }
  }
}

TEST_P(Checkpointing, FrozenWeightsStayWithoutGradient) {
  const auto run = [&](BlockCheckpointing checkpointing) {
    OwnedModel owned(small_model_config(), options_of(checkpointing), {dtype, std::nullopt});
    owned.initialize(7);
    // The embedding and the first block whole, of the second all but down_proj.
    const auto parameters = owned.parameters();
    for (std::size_t i = 0; i < 18; ++i) parameters[i]->value = parameters[i]->value.detach();
    const StepInputs inputs(2, 16, 300, 1);
    owned.model.backward(owned.model.loss(inputs.ids, inputs.targets, inputs.weights));
    Tensors gradients;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(parameters[i]->value.grad().defined(), i >= 18) << parameters[i]->name;
      if (i >= 18) gradients.push_back(parameters[i]->value.grad());
    }
    return gradients;
  };
  expect_same_bits(run(mode), run(BlockCheckpointing::none));
}

// A block of whose backward, with what it computes again, one allocation is refused.
class FailingHooks final : public UnitHooks {
 public:
  FailingHooks(std::size_t unit, std::int64_t refused_event) : unit_(unit), ledger_(std::make_shared<MemoryLedger>()) {
    ledger_->refuse_at(refused_event);
  }

  void before_forward(std::size_t /*unit*/) override {}
  void after_forward(std::size_t /*unit*/, const at::Tensor& /*output*/) override {}
  void before_gradients(std::size_t /*unit*/) override {}
  void before_backward(std::size_t unit) override {
    if (unit == unit_) scope_.emplace(ledger_);
  }
  void after_backward(std::size_t unit) override {
    if (unit == unit_) scope_.reset();
  }

  void stop() { scope_.reset(); }
  std::int64_t allocated_bytes() const { return ledger_->allocated_bytes(); }

 private:
  std::size_t unit_;
  std::shared_ptr<MemoryLedger> ledger_;
  std::optional<LedgerScope> scope_;
};

// One block of two fails after more and more allocations, until it no longer fails.
void expect_recovery(BlockCheckpointing mode, at::ScalarType dtype) {
  install_tracking_allocators();
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  OwnedModel owned(small_model_config(), options_of(mode), {dtype, at::kFloat});
  owned.initialize(7);
  const Tensors expected = run_step(owned, 1);
  int num_failures = 0;
  for (bool failed = true; failed; ++num_failures) {
    SCOPED_TRACE(num_failures);
    const std::int64_t allocated_bytes = ledger->allocated_bytes();
    FailingHooks hooks(/*unit=*/2, num_failures);
    owned.model.set_hooks(&hooks);
    failed = false;
    try {
      run_step(owned, 1);
    } catch (const c10::OutOfMemoryError&) {
      failed = true;
    }
    hooks.stop();
    owned.model.set_hooks(nullptr);
    EXPECT_EQ(ledger->allocated_bytes(), allocated_bytes) << "the failed step keeps memory";
    EXPECT_EQ(hooks.allocated_bytes(), 0) << "the failed block keeps memory";
    owned.zero_gradients();
    expect_same_bits(run_step(owned, 1), expected);
    owned.zero_gradients();
  }
  EXPECT_GT(num_failures, 10);
}

TEST_P(Checkpointing, AnyFailedAllocationLeavesTheNextStepRight) { expect_recovery(mode, dtype); }

TEST(NoCheckpointing, AnyFailedAllocationLeavesTheNextStepRight) {
  expect_recovery(BlockCheckpointing::none, at::kBFloat16);
}

INSTANTIATE_TEST_SUITE_P(All, Checkpointing,
                         ::testing::Combine(::testing::Values(BlockCheckpointing::selective, BlockCheckpointing::full),
                                            ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& parameters) {
                           return std::string(std::get<0>(parameters.param) == BlockCheckpointing::full
                                                  ? "full_"
                                                  : "selective_") +
                                  at::toString(std::get<1>(parameters.param));
                         });

// Counts the products and the attention that are computed again.
class CountingHooks final : public UnitHooks {
 public:
  void before_forward(std::size_t /*unit*/) override {}
  void after_forward(std::size_t /*unit*/, const at::Tensor& /*output*/) override {}
  void before_gradients(std::size_t /*unit*/) override {}
  void before_backward(std::size_t /*unit*/) override {}
  void after_backward(std::size_t /*unit*/) override {}
  void before_recompute(std::size_t /*unit*/) override {
    const auto count = [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
      const std::string name = function.name();
      num_products += name == "aten::mm" ? 1 : 0;
      num_attentions += name == "aten::_scaled_dot_product_flash_attention_for_cpu" ? 1 : 0;
      return nullptr;
    };
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  }
  void after_recompute(std::size_t /*unit*/) override { at::removeCallback(handle_); }

  static inline int num_products = 0;
  static inline int num_attentions = 0;

 private:
  at::CallbackHandle handle_ = 0;
};

// Of the seven products of a block the last is never computed again, with `selective` none is.
TEST(CheckpointingCost, IsWhatIsComputedAgain) {
  for (const auto mode : {BlockCheckpointing::selective, BlockCheckpointing::full}) {
    OwnedModel owned(small_model_config(), options_of(mode));
    owned.initialize(7);
    CountingHooks hooks;
    CountingHooks::num_products = CountingHooks::num_attentions = 0;
    owned.model.set_hooks(&hooks);
    run_step(owned, 1);
    EXPECT_EQ(CountingHooks::num_products, mode == BlockCheckpointing::full ? 2 * 6 : 0);
    EXPECT_EQ(CountingHooks::num_attentions, mode == BlockCheckpointing::full ? 2 : 0);
  }
}

// Bytes above what is there before the step, at most.
std::int64_t peak_of_step(BlockCheckpointing checkpointing, std::int64_t num_layers) {
  install_tracking_allocators();
  ModelConfig config = small_model_config();
  config.num_hidden_layers = num_layers;
  TransformerOptions options = options_of(checkpointing);
  options.sequence_length = 512;
  options.loss_chunk_tokens = 64;
  OwnedModel owned(config, options);
  owned.initialize(7);
  const StepInputs inputs(1, 512, 300, 1);
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  owned.model.backward(owned.model.loss(inputs.ids, inputs.targets, inputs.weights));
  EXPECT_EQ(ledger->allocated_bytes(), 0);
  return ledger->peak_bytes();
}

// F01: a layer more costs `full` its input and nothing else. `selective` keeps of a block, a token: its input, query,
// key, value, attention's output, o_proj's (5 x 64 with 2 of 4 key heads), gate and up (2 x 160), and a logarithm for
// each head.
TEST(CheckpointingMemory, GrowsByWhatIsKept) {
  const std::int64_t hidden_bytes = 512 * 64 * 4;
  const auto growth = [](BlockCheckpointing mode) { return (peak_of_step(mode, 8) - peak_of_step(mode, 2)) / 6; };
  EXPECT_EQ(growth(BlockCheckpointing::full), hidden_bytes);
  EXPECT_EQ(growth(BlockCheckpointing::selective), 512 * (5 * 64 + 2 * 160 + 4) * 4);
  EXPECT_GT(growth(BlockCheckpointing::none), 10 * hidden_bytes);
  EXPECT_LT(peak_of_step(BlockCheckpointing::full, 8), peak_of_step(BlockCheckpointing::none, 8) / 3);
  EXPECT_LT(peak_of_step(BlockCheckpointing::selective, 8), peak_of_step(BlockCheckpointing::none, 8));
}

}  // namespace
}  // namespace assay
