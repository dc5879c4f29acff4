#include "harness/launch/rank_shim.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "harness/core/error.h"

namespace assay {
namespace {

constexpr std::string_view kShimArgument = "--assay-rank-shim";
bool shim_is_installed = false;

/// Closes all but the standard streams and `kept_fd`: a GPU, socket or lock of the launcher must not live on in a rank.
void close_inherited(int kept_fd) {
  std::vector<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    open.push_back(std::atoi(entry.path().filename().c_str()));
  }
  for (const int fd : open) {
    if (fd > 2 && fd != kept_fd) ::close(fd);
  }
}

}  // namespace

std::optional<int> run_rank_shim_if_asked(int argc, char** argv) {
  shim_is_installed = true;
  if (argc < 5 || argv[1] != kShimArgument) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before the line above.
  if (::getppid() != std::atoi(argv[2])) return 126;
  close_inherited(std::atoi(argv[3]));
  ::execvp(argv[4], argv + 4);
  const int reason = errno;
  std::fprintf(stderr, "cannot start %s: %s\n", argv[4], std::strerror(reason));
  return reason == ENOENT ? 127 : 126;
}

std::vector<std::string> shim_command(const std::vector<std::string>& program, int kept_fd) {
  ASSAY_CHECK(shim_is_installed);
  std::vector<std::string> command{"/proc/self/exe", std::string(kShimArgument), std::to_string(::getpid()),
                                   std::to_string(kept_fd)};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace assay
