#include "checkpoint/model_folder.h"

#include <algorithm>
#include <set>

#include "harness/core/error.h"
#include "harness/core/json.h"

namespace assay {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxListed = 10;

using WeightMap = std::map<std::string, std::string>;

/// All problems in one message, so that a user mends them in one go.
class Problems {
 public:
  void add(const std::string& problem) {
    if (++count_ <= kMaxListed) text_ += "\n  " + problem;
  }
  void throw_if_any(const std::filesystem::path& folder) const {
    if (count_ == 0) return;
    throw Error(ErrorKind::data,
                "model folder " + folder.string() + " cannot be used:" + text_ +
                    (count_ > kMaxListed ? "\n  ... " + std::to_string(count_ - kMaxListed) + " more" : ""));
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

WeightMap read_index(const std::filesystem::path& path) {
  const auto what = path.string();
  const auto text = read_text_file(path);
  if (text.starts_with("version https://git-lfs")) {
    throw Error(ErrorKind::data,
                what + " is a Git LFS pointer, not the file it stands for; fetch it with `git lfs pull`");
  }
  const auto index = parse_large_json(text, what);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw Error(ErrorKind::data, what + " has no object \"weight_map\" of tensor names and file names");
  }
  WeightMap files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    // A name with a folder could point anywhere on this machine.
    if (!file.is_string() || file.get<std::string>() != std::filesystem::path(file.get<std::string>()).filename() ||
        !file.get<std::string>().ends_with(".safetensors")) {
      throw Error(ErrorKind::data, what + ": weight_map gives " + file.dump() + " for tensor " + dump_json(name) +
                                       "; expected the plain name of a .safetensors file beside the index");
    }
    files.emplace(name, file.get<std::string>());
  }
  if (files.empty()) throw Error(ErrorKind::data, what + ": weight_map is empty");
  return files;
}

std::set<std::string> weight_files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  std::error_code code;
  for (std::filesystem::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    const auto name = entry->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".gguf")) names.insert(name);
  }
  return names;
}

}  // namespace

ModelFolder::ModelFolder(const std::filesystem::path& folder) : folder_(folder) {
  if (!std::filesystem::is_directory(folder))
    throw Error(ErrorKind::data, "there is no model folder " + folder.string());
  if (std::filesystem::exists(folder / kIndexFile)) {
    open_sharded(folder / kIndexFile);
  } else {
    open_single();
  }
  list_ignored();
}

void ModelFolder::open_single() {
  if (!std::filesystem::exists(folder_ / kSingleFile)) {
    std::string found;
    for (const auto& name : weight_files_in(folder_)) found += (found.empty() ? "" : ", ") + name;
    throw Error(ErrorKind::data, "model folder " + folder_.string() + " has neither " + kSingleFile + " nor " +
                                     kIndexFile +
                                     (found.empty() ? "" : "; found " + found + " (only safetensors files are read)"));
  }
  files_.push_back(std::make_unique<SafetensorsFile>(folder_ / kSingleFile));
  for (const auto& tensor : files_[0]->tensors()) file_of_.emplace(tensor.name, files_[0].get());
}

void ModelFolder::open_sharded(const std::filesystem::path& index) {
  const auto weight_map = read_index(index);
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, file] : weight_map) opened.emplace(file, nullptr);
  Problems unusable;
  for (auto& [name, file] : opened) {
    try {
      files_.push_back(std::make_unique<SafetensorsFile>(folder_ / name));
      file = files_.back().get();
    } catch (const Error& error) {
      unusable.add(error.what());
    }
  }
  unusable.throw_if_any(folder_);

  Problems contradictions;
  for (const auto& [name, file] : weight_map) {
    file_of_.emplace(name, opened.at(file));
    if (opened.at(file)->find(name) == nullptr) {
      contradictions.add("the index puts tensor " + dump_json(name) + " into " + file + ", which does not hold it");
    }
  }
  for (const auto& [file_name, file] : opened) {
    for (const auto& tensor : file->tensors()) {
      const auto entry = weight_map.find(tensor.name);
      if (entry == weight_map.end()) {
        contradictions.add(file_name + " holds tensor " + dump_json(tensor.name) + ", which the index does not name");
      } else if (entry->second != file_name) {
        contradictions.add(file_name + " holds tensor " + dump_json(tensor.name) + ", which the index puts into " +
                           entry->second);
      }
    }
  }
  contradictions.throw_if_any(folder_);
}

void ModelFolder::list_ignored() {
  auto names = weight_files_in(folder_);
  for (const auto& file : files_) names.erase(file->path().filename().string());
  for (const auto& name : names) {
    if (name.ends_with(".safetensors")) ignored_.push_back(name);
  }
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

std::optional<TensorView> ModelFolder::find(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) return std::nullopt;
  const auto* info = found->second->find(name);
  return TensorView{*info, found->second->bytes(*info), found->second->path()};
}

}  // namespace assay
