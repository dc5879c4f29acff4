#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>

#include "harness/memory/tracking_allocator.h"
#include "tests/support/owned_model.h"
#include "tests/support/step_inputs.h"

namespace assay {
namespace {

using Case = std::tuple<at::ScalarType, BlockCheckpointing, bool, bool>;

// The allocations of two steps of two micro-steps on a device, in their order.
std::vector<AllocationEvent> events_of(const Case& c, std::unique_ptr<Device> device) {
  const auto [dtype, mode, fp32_gradients, tied] = c;
  install_tracking_allocators();
  const auto ledger = std::make_shared<MemoryLedger>();
  ledger->record_events(true);
  const LedgerScope scope(ledger);
  ModelConfig config = small_model_config();
  config.tie_word_embeddings = tied;
  TransformerOptions options;
  options.sequence_length = 33;
  options.loss_chunk_tokens = 50;
  options.checkpointing = mode;
  OwnedModel owned(config, options, {dtype, fp32_gradients ? at::kFloat : dtype}, std::move(device));
  const StepInputs inputs(2, 33, 300, 1);
  const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(owned.device->torch_device()); };
  const at::Tensor ids = on_device(inputs.ids);
  const at::Tensor targets = on_device(inputs.targets);
  const at::Tensor weights = on_device(inputs.weights);
  for (int i = 0; i < 2; ++i) {
    ledger->set_phase(Phase::forward);
    const at::Tensor loss = owned.model.loss(ids, targets, weights, dtype == at::kHalf ? 65536 : 1);
    ledger->set_phase(Phase::backward);
    owned.model.backward(loss);
  }
  const at::NoGradGuard no_grad;
  ledger->set_phase(Phase::forward);
  owned.model.loss(ids, targets, weights);
  owned.model.logits(ids);
  ledger->set_phase(Phase::update);
  // Copies to another device are made on Meta only.
  auto events = ledger->events();
  events.erase(events.begin(), std::find_if(events.begin(), events.end(),
                                            [](const auto& event) { return event.phase == Phase::forward; }));
  return events;
}

class DryRunOfTheModel : public ::testing::TestWithParam<Case> {};

TEST_P(DryRunOfTheModel, AllocatesAsTheCpuDoes) {
  const auto run = events_of(GetParam(), make_cpu_device(1));
  const auto dry = events_of(GetParam(), make_meta_device({}));
  EXPECT_GT(run.size(), 500U);
  EXPECT_EQ(dry.size(), run.size());
  for (std::size_t i = 0; i < std::min(dry.size(), run.size()); ++i) {
    if (dry[i] == run[i]) continue;
    std::ostringstream around;
    for (std::size_t j = i < 4 ? 0 : i - 4; j < std::min({i + 6, dry.size(), run.size()}); ++j) {
      around << j << ": dry " << dry[j].bytes << " | run " << run[j].bytes << "\n";
    }
    FAIL() << "first difference at " << i << "\n" << around.str();
  }
}

INSTANTIATE_TEST_SUITE_P(All, DryRunOfTheModel,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                                            ::testing::Values(BlockCheckpointing::none, BlockCheckpointing::selective,
                                                              BlockCheckpointing::full),
                                            ::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace assay
