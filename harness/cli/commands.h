#pragma once

#include <string>
#include <vector>

#include "harness/cli/command_line.h"

namespace assay {

/// One command of `assay`. A new command is one row in commands.cpp and one function run_<name>.
struct Command {
  const char* name;
  const char* arguments;  ///< as shown by the help: "RECIPE [KEY=VALUE ...]"; without KEY=VALUE all words are paths
  const char* summary;    ///< one line for the help
  const char*
      options;  ///< names from the option table it takes, separated by blanks; null: it parses its own arguments
  int (*run)(const CommandLine&);  ///< returns the exit code; throws Error
};

/// All commands in the order of the help.
const std::vector<Command>& all_commands();

}  // namespace assay
