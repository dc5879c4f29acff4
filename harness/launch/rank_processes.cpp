#include "harness/launch/rank_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/host.h"
#include "harness/core/units.h"
#include "harness/launch/rank_shim.h"
#include "harness/launch/rendezvous.h"

namespace assay {
namespace {

/// An anonymous file with the bytes; each rank opens it anew, with a position of its own.
FileDescriptor input_file(const std::string& bytes) {
  FileDescriptor file(::memfd_create("standard_input", MFD_CLOEXEC));
  if (!file) throw_errno("memfd_create", "standard input of the ranks");
  write_all(file.get(), bytes.data(), bytes.size(), "standard input of the ranks");
  return file;
}

/// A file of an earlier attempt must not speak for this one.
const std::filesystem::path& fresh(const std::filesystem::path& path) {
  make_folders(path.parent_path());
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return path;
}

const std::filesystem::path& in_folder(const std::filesystem::path& path) {
  make_folders(path.parent_path());
  return path;
}

}  // namespace

RankProcesses::Rank::Rank(const LaunchSpec& spec, int rank, Terminal* out_terminal, Terminal* err_terminal)
    : number(rank),
      files(files_of(spec, rank)),
      heartbeat(fresh(files.heartbeat)),
      out(in_folder(files.standard_output), "[rank " + std::to_string(rank) + "] ", out_terminal),
      err(in_folder(files.standard_error), "[rank " + std::to_string(rank) + "] ", err_terminal) {
  fresh(files.error);
}

RankProcesses::RankProcesses(const LaunchSpec& spec) : spec_(spec), master_port_(spec.master_port) {
  ListeningSocket socket;
  if (spec.pass_listen_fd) {
    socket = listen_on(spec.master_addr, spec.master_port);
    master_port_ = socket.port;
  } else if (master_port_ == 0) {
    master_port_ = find_free_port();
  }
  const bool show_out = spec.echo && (spec.hidden_streams & 1) == 0;
  const bool show_err = spec.echo && (spec.hidden_streams & 2) == 0;
  for (int rank = 0; rank < spec.nproc; ++rank) {
    ranks_.emplace_back(spec, rank, show_out ? &out_ : nullptr, show_err ? &err_ : nullptr);
  }
  const FileDescriptor input = input_file(spec.standard_input);
  const std::string input_path = "/proc/self/fd/" + std::to_string(input.get());
  for (auto& rank : ranks_) {
    const FileDescriptor own_input(::open(input_path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!own_input) throw_errno("open", input_path);
    start(rank, own_input.get(), rank.number == 0 ? socket.fd.get() : -1);
  }
  // From here on the socket is rank 0's alone: if it dies, nobody waits for an answer from it.
}

void RankProcesses::start(Rank& rank, int standard_input, int listen_fd) {
  rank.child.emplace(ChildProcess::Options{.command = shim_command(spec_.program, listen_fd),
                                           .environment = environment_of(spec_, rank.number, master_port_, listen_fd),
                                           .standard_input = standard_input,
                                           .standard_output = rank.out.write_fd(),
                                           .standard_error = rank.err.write_fd(),
                                           .kept_fd = listen_fd});
}

bool RankProcesses::all_ended() const {
  return std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.child->running(); });
}

bool RankProcesses::all_succeeded() {
  return std::all_of(ranks_.begin(), ranks_.end(), [](Rank& rank) {
    const auto status = rank.child->poll();
    return status && status->success();
  });
}

LaunchView RankProcesses::view() const {
  LaunchView view;
  for (const auto& rank : ranks_) {
    view.ranks.push_back({.pid = rank.child->pid(), .alive = rank.child->running(), .state = rank.heartbeat.read()});
  }
  return view;
}

std::vector<RankFailure> RankProcesses::observe(double elapsed_seconds) {
  std::vector<RankFailure> failures;
  const bool one_is_stopped = std::any_of(ranks_.begin(), ranks_.end(),
                                          [](const Rank& rank) { return rank.child->stopped_after().has_value(); });
  for (auto& rank : ranks_) {
    if (rank.judged) rank.child->poll();
    if (rank.judged || !rank.child->running()) continue;
    const auto status = rank.child->poll();
    const auto failure =
        status ? look_at_end(rank, *status) : look_for_standstill(rank, elapsed_seconds, one_is_stopped);
    if (!failure) continue;
    rank.judged = true;
    rank.child->signal_group(SIGKILL);
    failures.push_back(*failure);
  }
  return failures;
}

std::optional<RankFailure> RankProcesses::look_at_end(Rank& rank, const ExitStatus& status) const {
  if (status.success() || (status.signal && sent_.contains(*status.signal))) return std::nullopt;
  RankFailure failure = failure_of(rank, status.signal ? "killed" : "exited");
  failure.exit_code = status.code;
  failure.signal = status.signal;
  const bool spoke = read_own_words(rank.files.events, rank.files.error, spec_.attempt, failure);
  // Asked to end, a program may answer with any exit code; an error it reports is one all the same.
  if (!spoke && !sent_.empty() && !status.signal) return std::nullopt;
  if (!spoke) failure.message = rank.err.last_lines(5);
  return failure;
}

std::optional<RankFailure> RankProcesses::look_for_standstill(Rank& rank, double elapsed_seconds,
                                                              bool one_is_stopped) const {
  if (sent_.contains(SIGKILL)) return std::nullopt;
  const auto stopped_after = rank.child->stopped_after();
  const bool stopped = stopped_after.has_value();
  // One that goes on now and then between two looks is slow, not stopped.
  rank.stopped_seconds = stopped && stopped_after == rank.stopped_after ? rank.stopped_seconds + elapsed_seconds : 0;
  rank.stopped_after = stopped_after;
  const auto num_beats = rank.heartbeat.read().num_beats;
  // A stopped rank does not hear that it shall end; one that ends need not beat.
  const bool waiting = sent_.empty() && num_beats != 0 && num_beats == rank.num_beats && !stopped;
  // While one is stopped the others may well wait for it.
  const double waited = one_is_stopped ? 0 : elapsed_seconds;
  rank.stalled_seconds = waiting ? rank.stalled_seconds + waited : 0;
  rank.num_beats = num_beats;
  if (stopped && rank.stopped_seconds >= spec_.stopped_seconds) {
    auto failure = failure_of(rank, "stopped");
    failure.message = "state T in /proc for more than " + format_seconds(spec_.stopped_seconds);
    return failure;
  }
  if (waiting && spec_.stall_seconds > 0 && rank.stalled_seconds >= spec_.stall_seconds) {
    auto failure = failure_of(rank, "stalled");
    failure.message = "no heartbeat for more than " + format_seconds(spec_.stall_seconds);
    return failure;
  }
  return std::nullopt;
}

RankFailure RankProcesses::failure_of(const Rank& rank, const std::string& reason) const {
  const auto state = rank.heartbeat.read();
  const auto phase = static_cast<std::size_t>(state.phase);
  RankFailure failure;
  failure.rank = rank.number;
  failure.host = host_name();
  failure.pid = rank.child->pid();
  // The rank can write anything into the shared file.
  if (state.num_beats > 0 && phase < kPhaseNames.size()) failure.phase = kPhaseNames[phase];
  failure.step = state.step;
  failure.reason = reason;
  failure.time = utc_now();
  return failure;
}

void RankProcesses::send(int signal) {
  sent_.insert(signal);
  for (const auto& rank : ranks_) rank.child->signal_group(signal);
}

bool RankProcesses::show_output() {
  bool all_shown = true;
  for (auto& rank : ranks_) {
    all_shown = rank.out.show_new_lines() && all_shown;
    all_shown = rank.err.show_new_lines() && all_shown;
  }
  return all_shown && out_.flush() && err_.flush();
}

bool RankProcesses::finish_output() {
  if (!show_output()) return false;
  for (auto& rank : ranks_) {
    rank.out.show_rest();
    rank.err.show_rest();
  }
  const bool all_out = out_.flush();
  return err_.flush() && all_out;
}

}  // namespace assay
