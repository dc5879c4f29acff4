#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/recipe/recipe.h"

namespace assay {

/// Marks a label that is not trained, as in Hugging Face files.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// One sequence. `labels` are not shifted: position t is scored against labels[t + 1].
struct Row {
  std::vector<std::int64_t> input_ids;
  std::vector<std::int64_t> labels;
};

/// The training data as a function of the sample number: the same number gives the same row on every rank, before and
/// after a restart and under any world size. Sample numbers run over the whole job, epoch after epoch. Host only, no
/// LibTorch.
class RowSource {
 public:
  virtual ~RowSource() = default;

  /// Tokens of every row.
  std::int64_t sequence_length() const { return sequence_length_; }

  /// Row of sample `sample` >= 0. Throws Error{data} for a sample past num_samples().
  virtual Row row(std::int64_t sample) const = 0;

  /// Trained tokens of that row: labels after the first that are not ignored.
  virtual std::int64_t num_trained_tokens(std::int64_t sample) const = 0;

  /// Samples there are; nothing if they never end because epochs repeat.
  virtual std::optional<std::int64_t> num_samples() const { return std::nullopt; }

  /// Samples of one epoch, nothing if there are no epochs.
  virtual std::optional<std::int64_t> epoch_samples() const { return std::nullopt; }

  /// One past the largest token id that can occur.
  virtual std::int64_t vocab_size_needed() const = 0;

  /// Equal for equal data: names, sizes and beginnings of the files. Ranks and a resumed job compare it.
  virtual std::string identity() const = 0;

  /// In one line for the log: where the data comes from and how much there is.
  virtual std::string description() const = 0;

 protected:
  explicit RowSource(std::int64_t sequence_length) : sequence_length_(sequence_length) {}

 private:
  std::int64_t sequence_length_;
};

/// What a training job reads, by data.format. Throws Error{data} if files are missing, too short for one row, of the
/// wrong shape (batches: [step, micro-step, row, length] must fit the recipe and world size), or hold too few steps.
std::unique_ptr<RowSource> make_row_source(const Recipe& recipe, int world_size, std::int64_t vocab_size);

/// Held-out text from data.eval_path, in file order. Null if the recipe names none or never evaluates. Throws
/// Error{recipe} unless the training data is text too, Error{data} as make_row_source.
std::unique_ptr<RowSource> make_eval_source(const Recipe& recipe, std::int64_t vocab_size);

/// Uniformly random tokens from the seed and the sample number.
std::unique_ptr<RowSource> make_synthetic_rows(std::int64_t sequence_length, std::int64_t vocab_size,
                                               std::int64_t seed);

/// Bytes of text files, cut into rows without overlap; a tail shorter than a row is not used. With `shuffle` each epoch
/// has an order of its own, a function of seed and epoch alone; a step may span two epochs. Errors name `key`, the
/// recipe's for these paths.
std::unique_ptr<RowSource> make_byte_rows(const std::vector<std::filesystem::path>& paths, std::int64_t sequence_length,
                                          bool shuffle, std::int64_t seed, const std::string& key = "data.path");

/// Another program's run: safetensors with input_ids and labels int64 [step, micro-step, row, length], in that order.
std::unique_ptr<RowSource> make_batch_rows(const std::filesystem::path& path, const Recipe& recipe, int world_size);

/// Rows that are already in memory, one after the other in two lists of the same length. Throws Error{data} if they are
/// empty.
std::unique_ptr<RowSource> make_given_rows(std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels,
                                           std::int64_t sequence_length, const std::string& description);

/// Order of `count` rows in one epoch: a permutation that depends on seed and epoch alone (Fisher-Yates over
/// SplitMix64).
std::vector<std::int64_t> epoch_order(std::int64_t count, std::int64_t seed, std::int64_t epoch);

}  // namespace assay
