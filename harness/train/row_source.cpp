#include "harness/train/row_source.h"

#include <numeric>
#include <utility>

#include "harness/core/error.h"
#include "harness/train/random.h"

namespace assay {
namespace {

class SyntheticRows final : public RowSource {
 public:
  SyntheticRows(std::int64_t sequence_length, std::int64_t vocab_size, std::int64_t seed)
      : RowSource(sequence_length), vocab_size_(vocab_size), seed_(seed) {}

  Row row(std::int64_t sample) const override {
    std::uint64_t stream = random_stream(seed_, sample);
    Row row;
    for (std::int64_t i = 0; i < sequence_length(); ++i) row.input_ids.push_back(random_below(stream, vocab_size_));
    row.labels = row.input_ids;
    return row;
  }
  std::int64_t num_trained_tokens(std::int64_t /*sample*/) const override { return sequence_length() - 1; }
  std::int64_t vocab_size_needed() const override { return vocab_size_; }
  std::string identity() const override { return description() + " from seed " + std::to_string(seed_); }
  std::string description() const override { return "synthetic tokens below " + std::to_string(vocab_size_); }

 private:
  std::int64_t vocab_size_;
  std::int64_t seed_;
};

void check_vocabulary(const RowSource& source, std::int64_t vocab_size) {
  if (source.vocab_size_needed() <= vocab_size) return;
  throw Error(ErrorKind::data, source.description() + " needs a vocabulary of " +
                                   std::to_string(source.vocab_size_needed()) + ", the model's vocab_size is " +
                                   std::to_string(vocab_size));
}

std::vector<std::filesystem::path> data_files(const std::vector<DataPath>& paths) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) files.emplace_back(path.path);
  return files;
}

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t count, std::int64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t stream = random_stream(seed, epoch);
  for (std::int64_t i = count - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(random_below(stream, i + 1))]);
  }
  return order;
}

std::unique_ptr<RowSource> make_synthetic_rows(std::int64_t sequence_length, std::int64_t vocab_size,
                                               std::int64_t seed) {
  return std::make_unique<SyntheticRows>(sequence_length, vocab_size, seed);
}

std::unique_ptr<RowSource> make_row_source(const Recipe& recipe, int world_size, std::int64_t vocab_size) {
  std::unique_ptr<RowSource> source;
  if (recipe.data.format == DataFormat::synthetic) {
    source = make_synthetic_rows(recipe.data.sequence_length, vocab_size, recipe.seed);
  } else if (recipe.data.format == DataFormat::batches) {
    source = make_batch_rows(recipe.data.path.at(0).path, recipe, world_size);
  } else {
    source =
        make_byte_rows(data_files(recipe.data.path), recipe.data.sequence_length, recipe.data.shuffle, recipe.seed);
  }
  check_vocabulary(*source, vocab_size);
  return source;
}

std::unique_ptr<RowSource> make_eval_source(const Recipe& recipe, std::int64_t vocab_size) {
  if (!recipe.data.eval_path || recipe.train.eval_interval == 0) return nullptr;
  if (recipe.data.format != DataFormat::text) {
    throw Error(ErrorKind::recipe,
                "data.eval_path " + *recipe.data.eval_path + " is read as text, so data.format must be text");
  }
  auto source = make_byte_rows({*recipe.data.eval_path}, recipe.data.sequence_length, /*shuffle=*/false, recipe.seed,
                               "data.eval_path");
  check_vocabulary(*source, vocab_size);
  return source;
}

}  // namespace assay
