#include "harness/cli/commands.h"

#include "harness/cli/validate.h"
#include "harness/launch/launch_command.h"

namespace assay {

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands{
      {"validate", "RECIPE [KEY=VALUE ...]", "resolve and check only; prints the resolved recipe",
       "json keys nproc-per-node", run_validate},
      {"launch", "[torchrun options] -- PROGRAM ARGS", "start a program on every rank of this node, as torchrun does",
       nullptr, [](const CommandLine& line) { return run_launch(line.arguments); }},
  };
  return commands;
}

}  // namespace assay
