#pragma once

#include "harness/cli/command_line.h"

namespace assay {

/// `assay replay TRACE [KEY=VALUE ...]`: an allocator trace through the allocator model, under the recorded settings or
/// others. With --output writes memory_snapshot.pickle and trace.json there. Returns exit_done, whether or not all
/// requests fit; throws Error{data} for a bad trace.
int run_replay(const CommandLine& line);

}  // namespace assay
