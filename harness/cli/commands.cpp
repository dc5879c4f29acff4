#include "harness/cli/commands.h"

#include "harness/cli/replay_command.h"
#include "harness/cli/run_commands.h"
#include "harness/cli/show_command.h"
#include "harness/cli/threshold_command.h"
#include "harness/cli/validate.h"
#include "harness/cli/verify_command.h"
#include "harness/launch/launch_command.h"

namespace assay {

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands{
      {"accept", "[RECIPE] [KEY=VALUE ...]", "the whole acceptance; no RECIPE: recipes/tiny_cpu.yaml",
       "nproc-per-node output json dry-run", run_accept},
      {"train", "RECIPE [KEY=VALUE ...]", "the training loop alone, no verdict",
       "nproc-per-node output allow-change json dry-run", run_train},
      {"estimate", "RECIPE [KEY=VALUE ...]", "memory by closed formula and dry run, before anything is started",
       "nproc-per-node json dry-run", run_estimate},
      {"collective", "[KEY=VALUE ...]", "correctness of the collectives", "nproc-per-node output json dry-run",
       run_collective},
      {"threshold", "RECIPE --vary KEY [KEY=VALUE ...]", "largest value of KEY that fits: predicted and found, twice",
       "vary step predict-only nproc-per-node output json dry-run", run_threshold},
      {"report", "RUN_DIR", "evaluate a run folder again and write every report from its files", "json", run_report},
      {"validate", "RECIPE [KEY=VALUE ...]", "resolve and check only; prints the resolved recipe",
       "json keys nproc-per-node", run_validate},
      {"verify", "MODEL_DIR REFERENCE [model.config.KEY=VALUE ...]",
       "logits, loss and gradients against a reference file made elsewhere", "json atol rtol loss-atol",
       run_verify_command},
      {"show", "PATH", "list and check a safetensors file, model folder, checkpoint or manifest", "json", run_show},
      {"replay", "TRACE [KEY=VALUE ...]", "an allocator trace through the allocator model, other settings or capacity",
       "json output", run_replay},
      {"launch", "[torchrun options] -- PROGRAM ARGS", "start a program on every rank of this node, as torchrun does",
       nullptr, [](const CommandLine& line) { return run_launch(line.arguments); }},
  };
  return commands;
}

}  // namespace assay
