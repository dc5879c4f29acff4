#include "harness/cli/command_line.h"

#include <algorithm>
#include <cctype>
#include <cxxopts.hpp>
#include <iterator>
#include <sstream>
#include <string_view>

#include "harness/cli/commands.h"
#include "harness/core/error.h"
#include "harness/core/nearest.h"
#include "harness/core/units.h"

namespace assay {
namespace {

struct OptionRow {
  std::string name;
  std::string value;  ///< name of its value in the help; empty for a flag
  std::string help;
};

/// The option table, shared by all commands: the same name means the same everywhere.
const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> rows{
      {"nproc-per-node", "N", "processes on this machine, one for each device (the key parallel.nproc_per_node)"},
      {"output", "DIR", "folder for what is written (of a run: runs/<recipe>-<time> unless told)"},
      {"vary", "KEY", "the recipe key whose largest value that fits is searched; a whole number"},
      {"step", "N", "only multiples of N are tried (default 1)"},
      {"predict-only", "", "by dry runs alone: starts no ranks, needs no device"},
      {"allow-change", "KEY", "on resume: this key may differ from the run that is resumed; may be repeated"},
      {"json", "", "one JSON document on stdout, logs on stderr"},
      {"atol", "X",
       "largest absolute difference of a logit (default for an fp32, fp16, bf16 reference: 5e-5, 0.04, 0.3)"},
      {"rtol", "X", "largest relative difference of a gradient, by its L2 norm (default 1e-4, 0.0125, 0.1)"},
      {"loss-atol", "X", "largest absolute difference of the loss (default 1e-5, 0.0025, 0.02)"},
      {"keys", "", "list every recipe key with its type, range, default and meaning"},
      {"dry-run", "", "resolve and check the recipe only, print it, start nothing"},
      {"quiet", "", "warnings and errors only"},
      {"help", "", "this text"},
  };
  return rows;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<OptionRow> options_of(const Command& command) {
  auto names = words_of(command.options);
  names.insert(names.end(), {"quiet", "help"});
  std::vector<OptionRow> rows;
  for (const auto& row : option_table()) {
    if (std::find(names.begin(), names.end(), row.name) != names.end()) rows.push_back(row);
  }
  return rows;
}

cxxopts::Options parser_of(const Command& command) {
  cxxopts::Options parser(std::string("assay ") + command.name, command.summary);
  parser.custom_help(std::string("[options] ") + command.arguments);
  for (const auto& row : options_of(command)) {
    if (row.value.empty()) {
      parser.add_options()(row.name, row.help);
    } else {
      parser.add_options()(row.name, row.help, cxxopts::value<std::string>(), row.value);
    }
  }
  return parser;
}

/// torchrun takes --nproc_per_node as well as --nproc-per-node; so do we.
std::string with_dashes(std::string word) {
  std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())), '_',
               '-');
  return word;
}

[[noreturn]] void refuse_option(const Command& command, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& row : options_of(command)) known.push_back(row.name);
  const auto nearest = nearest_name(name, known);
  std::string message = std::string(command.name) + " has no option --" + name;
  if (!nearest.empty()) message += "; did you mean --" + nearest + "?";
  throw Error(ErrorKind::usage, message + " (assay " + command.name + " --help lists the options)");
}

/// Option names with dashes, and a value joined to its option: "-1" is no option there. An unknown option is refused
/// here, where its nearest can be named.
std::vector<std::string> checked_words(const Command& command, const std::vector<std::string>& words) {
  const auto rows = options_of(command);
  std::vector<std::string> checked;
  bool only_arguments = false;
  for (auto word = words.begin(); word != words.end(); ++word) {
    only_arguments = only_arguments || *word == "--";
    if (only_arguments || !word->starts_with("-") || *word == "-") {
      checked.push_back(*word);
      continue;
    }
    checked.push_back(with_dashes(*word));
    const auto equal = checked.back().find('=');
    const auto name = checked.back().substr(0, equal);
    const auto row =
        std::find_if(rows.begin(), rows.end(), [&](const auto& known) { return "--" + known.name == name; });
    if (row == rows.end()) refuse_option(command, name.substr(name.starts_with("--") ? 2 : 1));
    const bool has_value = equal != std::string::npos;
    if (row->value.empty() && has_value) throw Error(ErrorKind::usage, name + " takes no value, as in " + *word);
    if (row->value.empty() || has_value) continue;
    const auto next = std::next(word);
    if (next == words.end() || next->starts_with("--"))
      throw Error(ErrorKind::usage, name + " needs a value: " + name + " " + row->value);
    checked.back() += "=" + *next;
    word = next;
  }
  return checked;
}

bool is_override(const std::string& word) {
  const auto equal = word.find('=');
  if (equal == std::string::npos || equal == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equal), [](unsigned char letter) {
    return std::isalnum(letter) || letter == '_' || letter == '-' || letter == '.';
  });
}

}  // namespace

std::optional<std::string> CommandLine::value(const std::string& option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::nullopt : std::optional(found->second.back());
}

std::optional<double> CommandLine::number(const std::string& option) const {
  const auto text = value(option);
  if (!text) return std::nullopt;
  const auto parsed = parse_number(*text);
  if (!parsed || *parsed < 0)
    throw Error(ErrorKind::usage, "--" + option + " " + *text + ": expected a number, 0 or more");
  return parsed;
}

std::string CommandLine::only_path(const std::string& what) const {
  const auto usage = " (assay " + command + " --help shows how it is called)";
  if (paths.empty()) throw Error(ErrorKind::usage, command + " needs " + what + usage);
  if (paths.size() > 1) {
    throw Error(ErrorKind::usage,
                command + " takes one " + what + ", and \"" + paths[1] + "\" is a second argument" + usage);
  }
  return paths[0];
}

CommandLine parse_command_line(const Command& command, const std::vector<std::string>& words) {
  CommandLine line;
  line.command = command.name;
  if (command.options == nullptr) {
    line.arguments = words;
    return line;
  }
  const auto checked = checked_words(command, words);
  std::vector<const char*> argv{command.name};
  for (const auto& word : checked) argv.push_back(word.c_str());
  try {
    auto parser = parser_of(command);
    const auto parsed = parser.parse(static_cast<int>(argv.size()), argv.data());
    for (const auto& option : parsed.arguments()) line.options[option.key()].push_back(option.value());
    const bool takes_overrides = std::string_view(command.arguments).find("KEY=VALUE") != std::string_view::npos;
    for (const auto& word : parsed.unmatched()) {
      (takes_overrides && is_override(word) ? line.overrides : line.paths).push_back(word);
    }
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ErrorKind::usage, std::string(command.name) + ": " + error.what());
  }
  if (const auto ranks = line.value("nproc-per-node")) {
    line.overrides.push_back("parallel.nproc_per_node=" + *ranks);
  }
  return line;
}

std::string help_of(const Command& command) {
  if (command.options != nullptr) return parser_of(command).help() + "\n";
  return std::string(command.summary) + "\nUsage:\n  assay " + command.name + " " + command.arguments + "\n";
}

}  // namespace assay
