#include <algorithm>
#include <set>
#include <utility>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/train/row_source.h"

namespace assay {
namespace {

constexpr std::int64_t kNumBytes = 256;

const std::set<std::string>& text_extensions() {
  static const std::set<std::string> extensions{".txt", ".md", ".h", ".cpp", ".c", ".py", ".cmake", ".yaml", ".json"};
  return extensions;
}

// A file is taken as it is; of a folder all text files below it, sorted by name.
std::vector<std::filesystem::path> text_files(const std::vector<std::filesystem::path>& paths, const std::string& key) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) {
    require_path(key, path);
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::filesystem::path> found;
    std::error_code code;
    for (std::filesystem::recursive_directory_iterator entry(path, code), end; !code && entry != end;
         entry.increment(code)) {
      if (entry->is_regular_file() && text_extensions().count(entry->path().extension().string()) > 0)
        found.push_back(entry->path());
    }
    if (code) throw Error(ErrorKind::data, key + ": cannot read the folder " + path.string() + ": " + code.message());
    if (found.empty()) throw Error(ErrorKind::data, key + ": there is no text file below " + path.string());
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

class ByteRows final : public RowSource {
 public:
  ByteRows(const std::vector<std::filesystem::path>& paths, std::int64_t sequence_length, bool shuffle,
           std::int64_t seed, const std::string& key)
      : RowSource(sequence_length), shuffle_(shuffle), seed_(seed) {
    for (const auto& path : text_files(paths, key)) {
      files_.emplace_back(path);
      names_ += path.string() + "\n";
      ends_.push_back(num_tokens() + static_cast<std::int64_t>(files_.back().bytes().size()));
    }
    num_rows_ = num_tokens() / sequence_length;
    if (num_rows_ == 0) {
      throw Error(ErrorKind::data, key + " " + (paths.empty() ? std::string() : paths.front().string()) + " holds " +
                                       std::to_string(num_tokens()) +
                                       " tokens, less than one row of data.sequence_length " +
                                       std::to_string(sequence_length));
    }
  }

  Row row(std::int64_t sample) const override {
    const std::int64_t epoch = sample / num_rows_;
    std::int64_t index = sample % num_rows_;
    if (shuffle_) {
      if (epoch != order_epoch_) {
        order_ = epoch_order(num_rows_, seed_, epoch);
        order_epoch_ = epoch;
      }
      index = order_[static_cast<std::size_t>(index)];
    }
    Row row;
    row.input_ids = tokens(index * sequence_length());
    row.labels = row.input_ids;
    return row;
  }

  std::int64_t num_trained_tokens(std::int64_t /*sample*/) const override { return sequence_length() - 1; }
  std::optional<std::int64_t> epoch_samples() const override { return num_rows_; }
  std::int64_t vocab_size_needed() const override { return kNumBytes; }
  std::string identity() const override {
    constexpr std::size_t kBeginning = 1 << 20;
    std::string facts = names_;
    for (const auto& file : files_) {
      facts += std::to_string(file.bytes().size()) + " " + sha256_of(file.bytes().substr(0, kBeginning)) + "\n";
    }
    return sha256_of(facts);
  }
  std::string description() const override {
    return std::to_string(files_.size()) + " text files, " + std::to_string(num_tokens()) + " byte tokens, " +
           std::to_string(num_rows_) + " rows an epoch, " + std::to_string(num_tokens() % sequence_length()) +
           " tokens at the end unused";
  }

 private:
  std::int64_t num_tokens() const { return ends_.empty() ? 0 : ends_.back(); }

  // The text is all files one after the other; a row may span several.
  std::vector<std::int64_t> tokens(std::int64_t begin) const {
    std::vector<std::int64_t> ids;
    ids.reserve(static_cast<std::size_t>(sequence_length()));
    auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    while (static_cast<std::int64_t>(ids.size()) < sequence_length()) {
      const auto bytes = files_[file].bytes();
      const std::int64_t file_begin = ends_[file] - static_cast<std::int64_t>(bytes.size());
      const auto offset = static_cast<std::size_t>(begin + static_cast<std::int64_t>(ids.size()) - file_begin);
      const auto wanted = static_cast<std::size_t>(sequence_length()) - ids.size();
      for (const char c : bytes.substr(offset, wanted)) ids.push_back(static_cast<unsigned char>(c));
      ++file;
    }
    return ids;
  }

  bool shuffle_;
  std::int64_t seed_;
  std::vector<MappedFile> files_;
  std::string names_;
  std::vector<std::int64_t> ends_;  ///< tokens before the end of each file
  std::int64_t num_rows_ = 0;
  mutable std::vector<std::int64_t> order_;
  mutable std::int64_t order_epoch_ = -1;
};

}  // namespace

std::unique_ptr<RowSource> make_byte_rows(const std::vector<std::filesystem::path>& paths, std::int64_t sequence_length,
                                          bool shuffle, std::int64_t seed, const std::string& key) {
  return std::make_unique<ByteRows>(paths, sequence_length, shuffle, seed, key);
}

}  // namespace assay
