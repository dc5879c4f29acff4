#pragma once

#include "harness/cli/command_line.h"

namespace assay {

/// `assay accept`: the whole acceptance in a run folder. Ends with the verdict's exit code; 3 if interrupted.
int run_accept(const CommandLine& line);

/// `assay train`: the training job alone, in a run folder, without a verdict.
int run_train(const CommandLine& line);

/// `assay collective`: correctness of the collectives alone. Accepts no machine.
int run_collective(const CommandLine& line);

/// `assay report`: evaluates a run folder again, from its files, and writes results and reports. The verdict's exit
/// code. Throws Error{io}, and writes nothing, if the evidence of an ended run is not what its SHA256SUMS says.
int run_report(const CommandLine& line);

/// `assay estimate`: formula and dry run. 0 if the plan fits or no capacity is stated, 1 if it does not fit.
int run_estimate(const CommandLine& line);

}  // namespace assay
