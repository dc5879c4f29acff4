#include "harness/launch/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/log.h"
#include "harness/launch/rank_processes.h"
#include "harness/launch/signal_catcher.h"

namespace assay {
namespace {

// `timeout` and some schedulers send a signal to the process and to its group: that is one request, not two.
constexpr double kSameRequestSeconds = 0.1;
// A launcher that was stopped itself does not blame the ranks for that time.
constexpr double kLongestLook = 1;
constexpr double kBusyTerminalWait = 0.01;

LaunchSpec checked(LaunchSpec spec) {
  if (spec.program.empty()) throw Error(ErrorKind::usage, "no program to launch");
  if (spec.nproc < 1)
    throw Error(ErrorKind::usage, "number of processes " + std::to_string(spec.nproc) + " is below 1");
  spec.folder = std::filesystem::absolute(spec.folder);
  make_folders(spec.folder / "events");
  return spec;
}

/// The writer is the launcher, so `rank` is not the one that failed.
Json event_of(const RankFailure& failure) {
  Json fields = to_json(failure);
  fields["failed_rank"] = failure.rank;
  fields.erase("rank");
  return fields;
}

/// One launch: running, then settling after a failure, then ending (SIGTERM sent), then killing (SIGKILL sent).
class Launch {
 public:
  explicit Launch(const LaunchSpec& spec)
      : spec_(spec), events_(spec.folder / "events" / "launcher.jsonl", -1, spec.attempt), group_(spec) {}

  LaunchResult run() {
    note("run", 0,
         {{"job", (spec_.folder / "").parent_path().filename().string()},
          {"pid", ::getpid()},
          {"world_size", spec_.nproc},
          {"program", spec_.program},
          {"master_port", group_.master_port()}});
    while (!look()) {
      const bool all_shown = group_.show_output();
      if (spec_.on_tick) show_view();
      advance();
      const double now = clock_.wall_seconds();
      const double pause = all_shown ? spec_.monitor_interval_seconds : output_pause();
      for (const int signal : signals_.wait(std::clamp(deadline_ - now, 0.0, pause))) on_signal(signal);
    }
    finish();
    return result_;
  }

 private:
  enum class Stage { running, settling, ending, killing };

  /// Records what is new; true if all ranks have ended.
  bool look() {
    const double now = clock_.wall_seconds();
    for (auto& failure : group_.observe(std::min(now - last_look_, kLongestLook))) {
      note("error", failure.step, event_of(failure));
      result_.failures.push_back(std::move(failure));
    }
    last_look_ = now;
    return group_.all_ended();
  }

  double output_pause() const { return group_.terminal_is_busy() ? kBusyTerminalWait : 0; }

  void show_view() {
    LaunchView view = group_.view();
    view.seconds = clock_.wall_seconds() - started_;
    spec_.on_tick(view);
  }

  void advance() {
    if (stage_ == Stage::running && !result_.failures.empty()) {
      enter(Stage::settling, spec_.settle_seconds);
    } else if (clock_.wall_seconds() >= deadline_) {
      if (stage_ == Stage::settling)
        end_group(spec_.grace_seconds);
      else
        kill_group();
    }
  }

  void note_interrupt(int signal) {
    if (!result_.interrupted_by) result_.interrupted_by = signal;
  }

  void on_signal(int signal) {
    note_interrupt(signal);
    if (stage_ == Stage::ending && clock_.wall_seconds() - stage_began_ > kSameRequestSeconds) kill_group();
    if (stage_ != Stage::running && stage_ != Stage::settling) return;
    log_warning("got " + signal_name(signal) + ": the ranks are asked to end; once more kills them");
    end_group(spec_.interrupt_grace_seconds);
  }

  void end_group(double grace_seconds) {
    group_.send(SIGTERM);
    enter(Stage::ending, grace_seconds);
  }

  void kill_group() {
    group_.send(SIGKILL);
    enter(Stage::killing, kForever);
  }

  void enter(Stage stage, double seconds) {
    stage_ = stage;
    stage_began_ = clock_.wall_seconds();
    deadline_ = stage_began_ + seconds;
  }

  void finish() {
    result_.seconds = clock_.wall_seconds() - started_;
    if (result_.interrupted_by && !group_.all_succeeded()) result_.exit_code = 128 + *result_.interrupted_by;
    if (!result_.failures.empty()) {
      result_.root_cause = find_root_cause(result_.failures);
      result_.exit_code = exit_code_of(*result_.root_cause);
    }
    for (std::vector<int> caught; caught.empty() && !group_.finish_output();) {
      caught = signals_.wait(output_pause());
      for (const int signal : caught) note_interrupt(signal);
    }
    note("end", 0,
         {{"exit_code", result_.exit_code},
          {"interrupted_by", result_.interrupted_by ? Json(*result_.interrupted_by) : Json()},
          {"seconds", result_.seconds},
          {"root_cause", result_.root_cause ? to_json(*result_.root_cause) : Json()}});
    const char* error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
    if (result_.root_cause && error_file) try_to([&] { write_error_file(error_file, *result_.root_cause); });
  }

  void note(std::string_view kind, std::int64_t step, const Json& fields) {
    try_to([&] { events_.write(kind, step, fields); });
  }

  /// A record that cannot be written (a full disk) must not end the ranks.
  template <typename Action>
  static void try_to(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }

  static constexpr double kForever = 1e18;

  const LaunchSpec& spec_;
  SystemClock clock_;
  EventWriter events_;
  SignalCatcher signals_;  // before the ranks: from their start on a signal must reach them
  const double started_ = clock_.wall_seconds();
  RankProcesses group_;
  LaunchResult result_;
  Stage stage_ = Stage::running;
  double stage_began_ = started_;
  double deadline_ = kForever;
  double last_look_ = started_;
};

}  // namespace

void LaunchView::kill(int rank, int signal) const {
  const Rank& target = ranks.at(static_cast<std::size_t>(rank));
  if (target.alive) ::kill(target.pid, signal);
}

LaunchResult launch(const LaunchSpec& spec) {
  const LaunchSpec own = checked(spec);
  return Launch(own).run();
}

}  // namespace assay
