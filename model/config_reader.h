#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/core/error.h"
#include "harness/core/json.h"

namespace assay {

/// Reads keys of one JSON object of a config.json. Every problem is an Error of `kind` that names the file (`where`),
/// the key and the value; what took a default or has no effect is told in `notes`. `object` and `notes` must outlive
/// it.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string where, ErrorKind kind, std::vector<std::string>& notes)
      : object_(object), where_(std::move(where)), kind_(kind), notes_(notes) {}

  /// The same for an object within this one.
  ConfigReader nested(const Json& object, const std::string& name) const;

  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& reason) const;

  /// The value of a key, nullptr if it is absent or null. The key is known from now on.
  const Json* find(const std::string& key);

  /// A value of that type; an absent one is `fallback`, or refused if there is none.
  std::int64_t integer(const std::string& key, std::optional<std::int64_t> fallback, std::int64_t least = 1);
  double number(const std::string& key, std::optional<double> fallback);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, std::optional<std::string> fallback);

  /// A setting that changes the model in a way this program does not know must have its neutral value.
  void require(const std::string& key, const Json& neutral);

  /// Keys that the user adds to the file's own: one without an effect is a slip.
  void refuse_unknown(const std::vector<std::string>& added, const std::set<std::string>& harmless) const;
  void note_unknown(const std::set<std::string>& harmless);

 private:
  template <class T>
  T use_default(const std::string& key, const std::optional<T>& fallback);

  const Json& object_;
  std::string where_;
  ErrorKind kind_;
  std::vector<std::string>& notes_;
  std::set<std::string> known_;
};

}  // namespace assay
