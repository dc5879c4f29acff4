#include "harness/cli/commands.h"

namespace assay {

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands{};
  return commands;
}

}  // namespace assay
