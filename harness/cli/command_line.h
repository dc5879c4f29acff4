#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace assay {

struct Command;

/// What the user typed after the name of the command, split by the option table (command_line.cpp).
struct CommandLine {
  std::string command;
  std::vector<std::string> arguments;  ///< of a command that parses its own (Command::options is null): all as typed
  std::vector<std::string> paths;      ///< other positional arguments, in order
  std::vector<std::string> overrides;  ///< KEY=VALUE of a command that takes them, in order; --nproc-per-node is one
  std::map<std::string, std::vector<std::string>> options;  ///< every given option by name; a flag has the value "true"

  bool has(const std::string& option) const { return options.contains(option); }
  /// The last value given, or nothing.
  std::optional<std::string> value(const std::string& option) const;
  /// A decimal number, 0 or more, or nothing. Throws Error{usage} if the text is none.
  std::optional<double> number(const std::string& option) const;
  /// The only path. Throws Error{usage} if there are more or none.
  std::string only_path(const std::string& what) const;
};

/// Parses the words after the command's name. Throws Error{usage} that names the nearest option for an unknown one.
CommandLine parse_command_line(const Command& command, const std::vector<std::string>& words);

/// The help of one command: how it is called, what it does, its options.
std::string help_of(const Command& command);

}  // namespace assay
