#pragma once

#include "harness/cli/command_line.h"

namespace assay {

/// `assay verify MODEL_DIR REFERENCE [KEY=VALUE ...]`: 0 if all values are within the tolerances, else 1.
int run_verify_command(const CommandLine& line);

}  // namespace assay
