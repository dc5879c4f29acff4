#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace assay {

/// A tensor of a model folder. The bytes live as long as the ModelFolder.
struct TensorView {
  TensorInfo info;
  std::string_view bytes;
  std::filesystem::path file;
};

/// The weights of a Hugging Face model folder: model.safetensors, or the files named by model.safetensors.index.json.
/// Where there is an index it rules: other files in the folder are ignored. Files are mapped, not read.
class ModelFolder {
 public:
  /// Throws Error{data} that names every file that is missing, empty, a Git LFS pointer or malformed, and every key on
  /// which index and files contradict each other: in the index but not in its file, in a file but not in the index
  /// (so also a key in two files).
  explicit ModelFolder(const std::filesystem::path& folder);

  std::vector<std::string> names() const;  ///< sorted
  std::optional<TensorView> find(const std::string& name) const;

  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  /// Names of *.safetensors files in the folder that are not part of the model.
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  void open_single();
  void open_sharded(const std::filesystem::path& index);
  void list_ignored();

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<std::string> ignored_;
  std::map<std::string, const SafetensorsFile*> file_of_;
};

}  // namespace assay
