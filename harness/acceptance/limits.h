#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace assay {

/// min: at least the value. max: at most. within: no further from 0 than the value. info: recorded, never judged.
enum class LimitKind { min, max, within, info };

/// One line of a limits file. `source` says where the value comes from; a limit without one is refused.
struct Limit {
  LimitKind kind = LimitKind::info;
  std::optional<double> value;  ///< nothing for info only
  std::string unit;
  std::string source;

  /// False for a number that is not finite.
  bool met_by(double measured) const;
  /// What is left to the value as a fraction of it, negative beyond it; nothing for a value of 0 and for info.
  std::optional<double> margin_of(double measured) const;
  /// "at least 0.05 fraction"
  std::string text() const;
};

/// The limits of one kind of device (recipes/limits/<gpu>.yaml), by name.
struct Limits {
  std::map<std::string, Limit> rows;

  /// Null if the file does not have it: the check that needs it is then incomplete.
  const Limit* find(const std::string& name) const;
};

/// Reads a limits file: a YAML mapping name -> {kind, value, unit, source}. Throws Error{recipe} that lists every
/// mistake as file:line:column: an unknown or repeated name or key, a wrong type, a kind that the check of this name
/// does not ask for (info is allowed for each), a missing value or source.
/// Error{data} without a file.
Limits load_limits(const std::filesystem::path& path);

}  // namespace assay
