#pragma once

#include "harness/cli/command_line.h"

namespace assay {

/// `assay show PATH`: lists and checks what the path holds. Returns exit_done; throws Error{data} for a bad file.
int run_show(const CommandLine& line);

}  // namespace assay
