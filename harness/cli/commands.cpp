#include "harness/cli/commands.h"

#include "harness/cli/validate.h"

namespace assay {

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands{
      {"validate", "RECIPE [KEY=VALUE ...]", "resolve and check only; prints the resolved recipe",
       "json keys nproc-per-node", run_validate},
  };
  return commands;
}

}  // namespace assay
