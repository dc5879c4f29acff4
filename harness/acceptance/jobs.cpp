#include "harness/acceptance/jobs.h"

#include <signal.h>

#include <optional>

#include "checkpoint/checkpoint_folder.h"
#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/remedies.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/core/log.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// Small enough that a rank of a tiny model cannot run from its first checkpoint to its end between two looks.
constexpr double kWatchfulSeconds = 0.005;

/// Kills the last rank once, after it has left the first complete checkpoint behind.
class PlannedKill {
 public:
  PlannedKill(fs::path job_folder, const Recipe& recipe, int attempt)
      : folder_(std::move(job_folder)),
        max_steps_(recipe.train.max_steps),
        events_(folder_ / "events" / "launcher.jsonl", -1, attempt) {}

  void look(const LaunchView& view) {
    const int victim = static_cast<int>(view.ranks.size()) - 1;
    const auto& rank = view.ranks.back();
    if (done_ || !rank.alive || rank.state.step < 2 || rank.state.step > max_steps_) return;
    const auto saved = list_complete(folder_ / "checkpoints");
    if (saved.empty() || rank.state.step <= saved.front().step) return;
    done_ = true;
    log_info("rank " + std::to_string(victim) + " is killed now, on purpose, in step " +
             std::to_string(rank.state.step) + "; step " + std::to_string(saved.front().step) + " is saved");
    events_.write("check", rank.state.step, {{"name", "planned_kill"}, {"victim", victim}, {"signal", SIGKILL}});
    view.kill(victim, SIGKILL);
  }

 private:
  fs::path folder_;
  std::int64_t max_steps_;
  EventWriter events_;
  bool done_ = false;
};

/// What the ranks are told.
Json job_of(const fs::path& folder, const JobRequest& request) {
  return {{"kind", request.kind},
          {"recipe", recipe_to_json(request.recipe)},
          {"folder", folder.string()},
          {"options", request.options}};
}

/// If a rank of this attempt ran out of device memory: what would have made it fit, for the reports.
void write_remedies(const fs::path& folder, const Recipe& recipe, int attempt) {
  const auto job = read_job(folder);
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const Json* error = job.last(rank, "error", attempt);
    const auto capacity = number_in(error == nullptr ? nullptr : member_of(*error, "memory"), "capacity_bytes");
    if (!capacity) continue;
    Recipe plan = recipe;
    if (!plan.device_memory_bytes) plan.device_memory_bytes = static_cast<std::int64_t>(*capacity);
    try {
      write_file_durably(folder / kRemediesFile, dump_json_pretty({{"remedies", evaluate_remedies(plan)}}));
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& failure) {
      log_warning(std::string("what would have fitted is not known: ") + failure.what());
    }
    return;
  }
}

}  // namespace

void write_job_file(const fs::path& run_folder, const JobRequest& request) {
  const auto folder = fs::path("jobs") / request.name;
  Json file = job_of(folder, request);
  file["world_size"] = world_size_of(request.recipe);
  file["changes"] = differing_keys(request.target, request.recipe);
  if (!request.reduced_model.empty()) file["reduced_model"] = request.reduced_model;
  make_folders(run_folder / folder / "events");
  write_file_durably(run_folder / folder / "job.json", dump_json_pretty(file));
}

void mend_job_file(const fs::path& run_folder, const JobRequest& request) {
  const auto folder = run_folder / "jobs" / request.name;
  try {
    read_job_file(folder);
  } catch (const Error&) {
    log_warning((folder / "job.json").string() + " is damaged and is written again from the recipe");
    write_job_file(run_folder, request);
  }
}

LaunchResult run_attempt(const fs::path& run_folder, const JobRequest& request, const JobDisplay& display,
                         bool kill_one) {
  const auto folder = fs::absolute(run_folder / "jobs" / request.name);
  const int attempt = read_job(folder).last_attempt() + 1;
  write_job_file(run_folder, request);

  LaunchSpec spec;
  spec.program = {find_rank_program().string(), "--job"};
  spec.nproc = static_cast<int>(world_size_of(request.recipe));
  spec.folder = folder;
  spec.standard_input = dump_json(job_of(folder, request));
  spec.attempt = attempt;
  spec.pass_listen_fd = true;
  spec.stall_seconds = request.recipe.parallel.timeout_seconds;
  spec.echo = display.echo;
  spec.hidden_streams = display.hidden_streams;
  std::optional<PlannedKill> planned;
  if (kill_one) {
    planned.emplace(folder, request.recipe, attempt);
    spec.monitor_interval_seconds = kWatchfulSeconds;
    spec.on_tick = [&](const LaunchView& view) { planned->look(view); };
  }
  const auto result = launch(spec);
  write_remedies(folder, request.recipe, attempt);
  return result;
}

LaunchResult run_job(const fs::path& run_folder, const JobRequest& request, const JobDisplay& display) {
  mend_job_file(run_folder, request);
  if (read_job_progress(run_folder / "jobs" / request.name).done()) return {};
  return run_attempt(run_folder, request, display);
}

}  // namespace assay
