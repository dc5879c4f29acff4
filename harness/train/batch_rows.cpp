#include <algorithm>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/text.h"
#include "harness/train/row_source.h"

namespace assay {
namespace {

class GivenRows final : public RowSource {
 public:
  GivenRows(std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels, std::int64_t sequence_length,
            std::string name)
      : RowSource(sequence_length),
        name_(std::move(name)),
        input_ids_(std::move(input_ids)),
        labels_(std::move(labels)) {}

  Row row(std::int64_t sample) const override {
    if (sample >= *num_samples()) {
      throw Error(ErrorKind::data, name_ + " holds " + std::to_string(*num_samples()) + " rows, row " +
                                       std::to_string(sample + 1) + " was asked for");
    }
    const auto begin = sample * sequence_length();
    const auto end = begin + sequence_length();
    return {{input_ids_.begin() + begin, input_ids_.begin() + end}, {labels_.begin() + begin, labels_.begin() + end}};
  }
  std::int64_t num_trained_tokens(std::int64_t sample) const override {
    const auto labels = row(sample).labels;
    return std::count_if(labels.begin() + 1, labels.end(), [](std::int64_t label) { return label != kIgnoredLabel; });
  }
  std::optional<std::int64_t> num_samples() const override {
    return static_cast<std::int64_t>(input_ids_.size()) / sequence_length();
  }
  std::int64_t vocab_size_needed() const override {
    const auto largest = [](const std::vector<std::int64_t>& ids) { return *std::max_element(ids.begin(), ids.end()); };
    return std::max(largest(input_ids_), largest(labels_)) + 1;
  }
  std::string identity() const override {
    const auto bytes = [](const std::vector<std::int64_t>& ids) {
      return std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0]));
    };
    return sha256_of(sha256_of(bytes(input_ids_)) + sha256_of(bytes(labels_)));
  }
  std::string description() const override { return name_ + ", " + std::to_string(*num_samples()) + " rows"; }

 private:
  std::string name_;
  std::vector<std::int64_t> input_ids_;
  std::vector<std::int64_t> labels_;
};

std::vector<std::int64_t> read_ids(const SafetensorsFile& file, const std::filesystem::path& path,
                                   const std::string& name, std::vector<std::int64_t>& shape) {
  const TensorInfo* info = file.find(name);
  if (info == nullptr) throw Error(ErrorKind::data, path.string() + ": tensor " + name + " is missing");
  if (info->dtype != "I64" || info->shape.size() != 4) {
    throw Error(ErrorKind::data, path.string() + ": " + name + " must be int64 [step, micro-step, row, length]");
  }
  shape = info->shape;
  const auto bytes = file.bytes(*info);
  std::vector<std::int64_t> ids(bytes.size() / sizeof(std::int64_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

void check_ids(const std::vector<std::int64_t>& ids, bool labels, const std::filesystem::path& path) {
  for (const auto id : ids) {
    if (id < 0 && !(labels && id == kIgnoredLabel)) {
      throw Error(ErrorKind::data,
                  path.string() + ": " + (labels ? "labels" : "input_ids") + " hold " + std::to_string(id));
    }
  }
}

}  // namespace

std::unique_ptr<RowSource> make_batch_rows(const std::filesystem::path& path, const Recipe& recipe, int world_size) {
  const SafetensorsFile file(path);
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> labels_shape;
  auto input_ids = read_ids(file, path, "input_ids", shape);
  auto labels = read_ids(file, path, "labels", labels_shape);
  if (shape != labels_shape) throw Error(ErrorKind::data, path.string() + ": input_ids and labels differ in shape");
  const std::int64_t rows = world_size * recipe.train.micro_batch_size;
  const std::vector<std::int64_t> expected{std::max(shape[0], recipe.train.max_steps),
                                           recipe.train.gradient_accumulation_steps, rows, recipe.data.sequence_length};
  if (shape != expected || input_ids.empty()) {
    throw Error(ErrorKind::data, path.string() + " holds [step, micro-step, row, length] = " + text_of_sizes(shape) +
                                     ", the recipe needs at least " + std::to_string(recipe.train.max_steps) +
                                     " steps of " + text_of_sizes({expected.begin() + 1, expected.end()}) +
                                     " (rows = world size x micro_batch_size)");
  }
  check_ids(input_ids, false, path);
  check_ids(labels, true, path);
  return make_given_rows(std::move(input_ids), std::move(labels), shape[3], path.string());
}

std::unique_ptr<RowSource> make_given_rows(std::vector<std::int64_t> input_ids, std::vector<std::int64_t> labels,
                                           std::int64_t sequence_length, const std::string& description) {
  if (input_ids.empty()) throw Error(ErrorKind::data, description + " holds no token");
  return std::make_unique<GivenRows>(std::move(input_ids), std::move(labels), sequence_length, description);
}

}  // namespace assay
