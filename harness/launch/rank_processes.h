#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/core/heartbeat.h"
#include "harness/launch/child_process.h"
#include "harness/launch/launcher.h"
#include "harness/launch/rank_environment.h"
#include "harness/launch/rank_log.h"

namespace assay {

/// The processes of one launch with their logs and heartbeats. The destructor kills and reaps what still runs.
class RankProcesses {
 public:
  /// Starts all ranks. `spec` must outlive the group. Throws Error{io, communication}.
  explicit RankProcesses(const LaunchSpec& spec);

  int master_port() const { return master_port_; }
  bool all_ended() const;
  /// All have ended, with exit code 0.
  bool all_succeeded();
  LaunchView view() const;

  /// Looks at every rank once, without blocking; `elapsed_seconds` have passed since the last look. Returns new
  /// failures. A rank that is stopped or stalled for too long is killed. Ends that follow from a signal of send() are
  /// no failures.
  std::vector<RankFailure> observe(double elapsed_seconds);

  /// Sends a signal to the groups of all ranks that run.
  void send(int signal);

  /// Shows some of the new output. True if nothing is left to show now.
  bool show_output();

  /// Does the terminal take no more for now?
  bool terminal_is_busy() const { return out_.is_busy() || err_.is_busy(); }

  /// Shows what is left, last lines without an end too. True if the terminal took all of it. For ranks that have ended.
  bool finish_output();

 private:
  struct Rank {
    Rank(const LaunchSpec& spec, int number, Terminal* out, Terminal* err);
    int number;
    RankFiles files;
    Heartbeat heartbeat;
    RankLog out;
    RankLog err;
    std::optional<ChildProcess> child;  ///< once started
    bool judged = false;                ///< its failure is known already
    std::optional<std::int64_t> stopped_after;
    double stopped_seconds = 0;
    double stalled_seconds = 0;
    std::uint64_t num_beats = 0;
  };

  void start(Rank& rank, int standard_input, int listen_fd);
  std::optional<RankFailure> look_at_end(Rank& rank, const ExitStatus& status) const;
  std::optional<RankFailure> look_for_standstill(Rank& rank, double elapsed_seconds, bool one_is_stopped) const;
  RankFailure failure_of(const Rank& rank, const std::string& reason) const;

  const LaunchSpec& spec_;
  Terminal out_{1};
  Terminal err_{2};
  int master_port_ = 0;
  std::set<int> sent_;
  std::deque<Rank> ranks_;
};

}  // namespace assay
