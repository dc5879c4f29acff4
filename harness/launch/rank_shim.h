#pragma once

#include <optional>
#include <string>
#include <vector>

namespace assay {

/// A rank is started as this executable with a hidden first argument: that second life, before the program is executed,
/// ties the rank to its launcher (SIGKILL when the launcher dies) and closes what it should not inherit.
/// Must be the first call of main in every program that calls launch(): where the hidden argument is absent it returns
/// nothing; else it executes the program and comes back only with an exit code, 126 or 127, if that failed.
std::optional<int> run_rank_shim_if_asked(int argc, char** argv);

/// Path and arguments that start `program` (found through PATH) under the shim; `kept_fd` stays open, -1 for none.
/// Throws Error{internal} if main did not call run_rank_shim_if_asked: this executable would start itself for ever.
std::vector<std::string> shim_command(const std::vector<std::string>& program, int kept_fd);

}  // namespace assay
