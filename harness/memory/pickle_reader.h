#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace assay {

/// One value of a pickle. Values are shared where the pickle shares them, and may form cycles: never walk them without
/// a schema.
struct PickleValue {
  using Items = std::vector<const PickleValue*>;
  enum class Kind : std::uint8_t { none, boolean, integer, real, text, bytes, list, tuple, dict };

  Kind kind = Kind::none;
  std::int64_t offset = 0;  ///< in the file: of the opcode that made it
  std::variant<std::int64_t, double, std::string_view, Items> data;

  /// The items of a list or tuple; of a dict keys and values by turns. Empty for any other kind.
  const Items& items() const;
  /// The value of a key of a dict, the last one given; null for a missing key and for what is no dict. Takes time in
  /// proportion to the number of keys.
  const PickleValue* find(std::string_view key) const;
};

/// Python's pickles of protocols 2 to 5 as data: None, bool, int, float, str, bytes, list, tuple and dict, nothing
/// else. An opcode that would import, call or build anything is refused, so nothing is ever executed. Takes memory in
/// proportion to the file, and at most 2^26 values.
class Pickle {
 public:
  /// Takes the bytes of a file. Throws Error{data} "<name>: byte <offset>: ..." for whatever it cannot read.
  Pickle(std::string bytes, std::string name);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }
  const std::string& name() const { return name_; }

  /// Throws Error{data} that names the file and the byte at which `value` stands.
  [[noreturn]] void fail(const PickleValue& value, const std::string& what) const;

 private:
  friend class PickleReader;

  std::string bytes_;
  std::string name_;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace assay
