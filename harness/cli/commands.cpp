#include "harness/cli/commands.h"

#include "harness/cli/show_command.h"
#include "harness/cli/validate.h"
#include "harness/cli/verify_command.h"
#include "harness/launch/launch_command.h"

namespace assay {

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands{
      {"validate", "RECIPE [KEY=VALUE ...]", "resolve and check only; prints the resolved recipe",
       "json keys nproc-per-node", run_validate},
      {"verify", "MODEL_DIR REFERENCE [model.config.KEY=VALUE ...]",
       "logits, loss and gradients against a reference file made elsewhere", "json atol rtol loss-atol", run_verify_command},
      {"show", "PATH", "list and check a safetensors file, model folder, checkpoint or manifest", "json", run_show},
      {"launch", "[torchrun options] -- PROGRAM ARGS", "start a program on every rank of this node, as torchrun does",
       nullptr, [](const CommandLine& line) { return run_launch(line.arguments); }},
  };
  return commands;
}

}  // namespace assay
