#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/launch/launcher.h"

namespace assay {

/// Where a rank's files are.
struct RankFiles {
  std::filesystem::path standard_output;
  std::filesystem::path standard_error;
  std::filesystem::path error;  ///< torchrun's error.json
  std::filesystem::path heartbeat;
  std::filesystem::path events;  ///< written by the rank alone
};

RankFiles files_of(const LaunchSpec& spec, int rank);

/// NAME=value of the whole environment of a rank: this process's, spec.environment, then torchrun's contract.
/// `listen_fd` is -1 for a rank that gets no socket.
std::vector<std::string> environment_of(const LaunchSpec& spec, int rank, int master_port, int listen_fd);

}  // namespace assay
