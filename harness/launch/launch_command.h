#pragma once

#include <string>
#include <vector>

#include "harness/launch/launcher.h"

namespace assay {

/// What `assay launch` was asked for.
struct LaunchCommand {
  LaunchSpec spec;                ///< of the first attempt; folder as below, without the attempt
  std::filesystem::path log_dir;  ///< empty: a new folder among the temporary files
  bool show_help = false;
};

/// Reads torchrun's options, "--" and the program. `_` and `-` in option names are alike; an option that is not given
/// takes the value of PET_<NAME>, as in torchrun. Throws Error{usage}.
LaunchCommand parse_launch_command(const std::vector<std::string>& arguments);

/// `assay launch`: runs the program on all ranks of this node, and again after a failure up to --max-restarts times,
/// but not after a mistake that would come back (program not found; error kinds usage, recipe, data). Returns the exit
/// code: the first failing program's, 128 + signal if it was killed. Throws Error.
int run_launch(const std::vector<std::string>& arguments);

}  // namespace assay
