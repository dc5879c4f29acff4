#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace assay {

/// Where a value was written.
struct Place {
  std::string source;  ///< a file as it was named, or "command line"
  int line = 0;        ///< from 1; 0 where lines mean nothing
  int column = 0;

  /// "file:line:column" or the source alone.
  std::string text() const;
};

/// Collects all mistakes of a recipe, so that they are told at once.
class Problems {
 public:
  /// `key` is the dotted key, or empty for a mistake of the whole file.
  void add(const Place& place, const std::string& key, const std::string& what);
  bool empty() const { return found_.empty(); }
  /// No mistake was found at any of these keys or their sections, so that rules between them make sense.
  bool all_good(const std::vector<std::string>& keys) const;
  /// Throws Error{recipe} with one line for each mistake, in the order of the file, if there are any.
  void throw_if_any() const;

 private:
  std::vector<std::pair<Place, std::string>> found_;
  std::set<std::string> keys_;
};

}  // namespace assay
