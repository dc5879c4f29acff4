#include "harness/train/step_batch.h"

namespace assay {
namespace {

struct HostBatch {
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> targets;
  std::vector<float> weights;

  void add(const Row& row, float token_weight) {
    const std::size_t length = row.input_ids.size();
    input_ids.insert(input_ids.end(), row.input_ids.begin(), row.input_ids.end());
    for (std::size_t t = 0; t < length; ++t) {
      const bool trained = t + 1 < length && row.labels[t + 1] != kIgnoredLabel;
      targets.push_back(trained ? row.labels[t + 1] : 0);
      weights.push_back(trained ? token_weight : 0.0F);
    }
  }
};

}  // namespace

std::int64_t count_trained_tokens(const RowSource& rows, std::int64_t first, std::int64_t end) {
  std::int64_t tokens = 0;
  for (std::int64_t sample = first; sample < end; ++sample) tokens += rows.num_trained_tokens(sample);
  return tokens;
}

MicroBatch load_micro_batch(const RowSource& rows, std::int64_t first, std::int64_t end, std::int64_t loss_tokens,
                            const BatchShape& shape, Device& device) {
  const float token_weight = loss_tokens == 0 ? 0.0F : static_cast<float>(1.0 / static_cast<double>(loss_tokens));
  HostBatch host;
  for (std::int64_t i = 0; i < shape.micro_batch_size; ++i) {
    const std::int64_t sample = first + shape.rank * shape.micro_batch_size + i;
    const bool counts = sample < end;
    host.add(rows.row(counts ? sample : 0), counts ? token_weight : 0.0F);
  }
  const std::int64_t length = rows.sequence_length();
  const std::int64_t tokens = shape.micro_batch_size * length;
  return {device.upload(host.input_ids, {shape.micro_batch_size, length}), device.upload(host.targets, {tokens}),
          device.upload(host.weights, {tokens})};
}

StepBatch load_step_batch(const RowSource& rows, std::int64_t first, const BatchShape& shape, Device& device) {
  StepBatch batch;
  const std::int64_t end = first + shape.step_rows();
  batch.loss_tokens = count_trained_tokens(rows, first, end);
  for (std::int64_t step = 0; step < shape.num_micro_steps; ++step) {
    batch.micro_batches.push_back(
        load_micro_batch(rows, first + step * shape.micro_rows(), end, batch.loss_tokens, shape, device));
    batch.tokens += batch.micro_batches.back().input_ids.numel() * shape.world_size;
  }
  return batch;
}

}  // namespace assay
