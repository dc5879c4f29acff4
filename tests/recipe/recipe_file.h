#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/recipe/load_recipe.h"

namespace assay {

/// A recipe in a folder of its own.
class RecipeFile {
 public:
  explicit RecipeFile(const std::string& text, const std::string& name = "r.yaml") {
    std::string pattern = std::filesystem::temp_directory_path() / "assay_recipe_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path = folder_ / name;
    write(text);
  }
  ~RecipeFile() { std::filesystem::remove_all(folder_); }
  RecipeFile(const RecipeFile&) = delete;

  void write(const std::string& text) const { std::ofstream(path, std::ios::binary) << text; }

  LoadedRecipe load(const std::vector<std::string>& overrides = {}, const ResolveFacts& facts = {}) const {
    return load_recipe(path, overrides, facts);
  }

  /// The lines of the error with the file's folder cut off; empty if the recipe loads.
  std::vector<std::string> mistakes(const std::vector<std::string>& overrides = {},
                                    const ResolveFacts& facts = {}) const {
    try {
      load(overrides, facts);
      return {};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::recipe) return {"not an error of the recipe"};
      std::vector<std::string> lines;
      for (auto line : split_lines(error.what())) {
        if (line.ends_with(" mistakes in the recipe:")) continue;
        if (line.starts_with(folder_.string())) line = line.substr(folder_.string().size() + 1);
        lines.push_back(line);
      }
      return lines;
    }
  }

  std::filesystem::path path;

 private:
  std::filesystem::path folder_;
};

/// The smallest recipe that loads.
inline const std::string kSmall = "model: {path: m}\ndata: {format: synthetic}\n";

}  // namespace assay
