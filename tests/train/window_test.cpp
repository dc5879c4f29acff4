#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/batch_job.h"

namespace assay {
namespace {

// Rows of another source, and a count of how often each was taken for training.
class CountingRows final : public RowSource {
 public:
  CountingRows(std::unique_ptr<RowSource> rows, std::int64_t epoch)
      : RowSource(rows->sequence_length()), taken(static_cast<std::size_t>(epoch)), rows_(std::move(rows)) {}

  Row row(std::int64_t sample) const override {
    ++taken[static_cast<std::size_t>(sample) % taken.size()];
    return rows_->row(sample);
  }
  std::int64_t num_trained_tokens(std::int64_t sample) const override { return rows_->num_trained_tokens(sample); }
  std::int64_t vocab_size_needed() const override { return rows_->vocab_size_needed(); }
  std::string identity() const override { return rows_->identity(); }
  std::string description() const override { return rows_->description(); }

  mutable std::vector<int> taken;

 private:
  std::unique_ptr<RowSource> rows_;
};

// Each row a text of its own.
std::string text_of_rows(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const auto number : numbers) {
    for (std::int64_t i = 0; i < kLength; ++i)
      text += static_cast<char>(i % 3 == 0 ? 'A' + (number + i) % 26 : 'a' + number);
  }
  return text;
}

struct TextRun {
  Outcome outcome;
  std::vector<std::vector<int>> taken_after_step;
};

// Steps of 4 micro-batches of 1 row over a text of these rows, epoch after epoch.
TextRun run_on_text(const std::vector<std::int64_t>& numbers, std::int64_t steps, double learning_rate) {
  const TemporaryFolder folder;
  std::ofstream(folder.path / "text.txt") << text_of_rows(numbers);
  Recipe recipe = recipe_of({1, 1, 4, steps});
  recipe.optimizer.learning_rate = learning_rate;
  install_tracking_allocators();
  const SystemClock clock;
  const auto communicator = make_fake_communicator(0, 1, clock);
  const auto device = make_cpu_device(1);
  const CountingRows rows(make_byte_rows({folder.path / "text.txt"}, kLength, false, 1),
                          static_cast<std::int64_t>(numbers.size()));
  MemoryLedger ledger;
  Trainer trainer(recipe, small_job_config(), {*device, *communicator, clock, ledger, rows, {}});
  trainer.initialize_parameters();
  TextRun result;
  for (std::int64_t step = 0; step < steps; ++step) {
    take_steps(trainer, 1, result.outcome);
    result.taken_after_step.push_back(rows.taken);
  }
  return result;
}

const std::vector<std::int64_t> kTenRows{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

// B04: 10 rows, accumulation 4. The window that an epoch's end cuts goes on in the next epoch: no row is lost, 5 steps
// are 2 epochs exactly.
TEST(Windows, AWindowGoesOnOverTheEndOfAnEpoch) {
  const TextRun run = run_on_text(kTenRows, 5, 1e-3);
  EXPECT_EQ(run.taken_after_step[1], (std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(run.taken_after_step[2], (std::vector<int>{2, 2, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(run.taken_after_step[4], std::vector<int>(10, 2));
  EXPECT_EQ(run.outcome.progress.samples, 20);
  for (const auto& record : run.outcome.records) EXPECT_EQ(record.loss_tokens, 4 * (kLength - 1));

  // The rows of the cut window move the weights.
  auto other_tail = kTenRows;
  other_tail[9] = 17;
  const TextRun other = run_on_text(other_tail, 3, 1e-3);
  EXPECT_EQ(run.outcome.records[1].loss, other.outcome.records[1].loss);
  EXPECT_NE(run.outcome.records[2].loss, other.outcome.records[2].loss);
  EXPECT_FALSE(bits_equal(run_on_text(kTenRows, 3, 1e-3).outcome.parameters, other.outcome.parameters));
}

// B06: with a rate of 0 the weights stay, so the gradient of the window over the epoch's end must be, bit for bit, that
// of a job that sees these four rows first.
TEST(Windows, NoGradientLeaksIntoTheNextWindow) {
  const Outcome third = run_on_text(kTenRows, 3, 0).outcome;
  const Outcome fresh = run_on_text({8, 9, 0, 1}, 1, 0).outcome;
  EXPECT_TRUE(bits_equal(third.gradients, fresh.gradients));
  EXPECT_EQ(third.records[2].loss, fresh.records[0].loss);
  EXPECT_TRUE(bits_equal(third.parameters, third.initial));
}

}  // namespace
}  // namespace assay
