#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/core/heartbeat.h"
#include "harness/launch/rank_failure.h"

namespace assay {

/// What a caller sees of the running ranks.
struct LaunchView {
  struct Rank {
    int pid = 0;
    bool alive = false;
    Heartbeat::State state;
  };
  std::vector<Rank> ranks;
  double seconds = 0;  ///< since the start

  /// Sends a signal to the process of one rank, if it is alive. Its end counts as that rank's failure.
  void kill(int rank, int signal) const;
};

/// One group of ranks on this node.
struct LaunchSpec {
  std::vector<std::string> program;  ///< path, or a name found through PATH, and arguments; no shell is involved
  int nproc = 1;
  std::filesystem::path folder;  ///< of the job; gets logs/, events/launcher.jsonl, heartbeat/
  bool torchrun_layout = false;  ///< logs as <folder>/<rank>/{stdout.log,stderr.log,error.json} instead of logs/
  std::string standard_input;    ///< every rank reads these bytes
  std::map<std::string, std::string> environment;  ///< for the ranks, over this process's; torchrun's variables win
  int attempt = 1;                                 ///< TORCHELASTIC_RESTART_COUNT is one less
  int max_restarts = 0;                            ///< only told to the ranks; who restarts is the caller
  std::string run_id = "none";
  std::string role = "default";
  std::string master_addr = "127.0.0.1";
  int master_port = 0;          ///< 0: a free one
  bool pass_listen_fd = false;  ///< rank 0 gets the listening socket (ASSAY_LISTEN_FD), so the port cannot be stolen
  double monitor_interval_seconds = 0.1;
  double settle_seconds = 1;             ///< after the first failure: for others to end by themselves
  double grace_seconds = 30;             ///< from SIGTERM to SIGKILL after a failure
  double interrupt_grace_seconds = 120;  ///< from SIGTERM to SIGKILL after SIGINT or SIGTERM: a save may take long
  double stall_seconds = 0;              ///< no heartbeat for so long, after the first one, is a failure; 0: never
  double stopped_seconds = 5;            ///< stopped (state T) for so long is a failure
  bool echo = true;                      ///< show the ranks' output, each line with "[rank 0] " before it
  int hidden_streams = 0;                ///< of an echo: 1 hides stdout, 2 stderr, 3 both
  std::function<void(const LaunchView&)> on_tick;  ///< at least every monitor interval, on the calling thread
};

struct LaunchResult {
  /// The root cause's (exit_code_of); else 0 if every rank exited with 0, also after a signal; else 128 + signal.
  int exit_code = 0;
  std::optional<RankFailure> root_cause;
  std::vector<RankFailure> failures;  ///< in the order they were seen; ends that the launcher brought about are none
  std::optional<int> interrupted_by;  ///< first signal that this process got, also after a failure
  double seconds = 0;
};

/// Starts the ranks and waits for all of them. Ends the others after the first failure; SIGINT, SIGTERM, SIGQUIT or
/// SIGHUP to this process goes to the ranks as SIGTERM, a second one kills them. When it returns or throws, no process
/// of the ranks' groups is left; if this process is killed, the kernel kills the ranks. One call at a time; main must
/// have called run_rank_shim_if_asked. Throws Error{io, communication} if something cannot be started or opened, and
/// what on_tick throws.
LaunchResult launch(const LaunchSpec& spec);

}  // namespace assay
