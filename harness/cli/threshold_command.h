#pragma once

#include "harness/cli/command_line.h"

namespace assay {

/// `assay threshold RECIPE --vary KEY`: the largest value of KEY that fits, predicted and found twice. 0 if the three
/// are equal, or only one was asked for (--predict-only); else 1.
int run_threshold(const CommandLine& line);

}  // namespace assay
