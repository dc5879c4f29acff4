// assay-rank: one rank of a job. Given a job by assay (JSON on standard input), or a recipe on its command line when it
// is started by torchrun --no-python, srun or mpirun.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "harness/acceptance/checksums.h"
#include "harness/acceptance/job_recipes.h"
#include "harness/acceptance/jobs.h"
#include "harness/acceptance/run_folder.h"
#include "harness/cli/read_job.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/host.h"
#include "harness/core/log.h"
#include "harness/launch/rank_failure.h"
#include "harness/machine/inventory.h"
#include "harness/recipe/load_recipe.h"
#include "harness/train/job.h"
#include "harness/train/rank_context.h"

namespace assay {
namespace {

Job job_from_input(const World& world, std::vector<Recipe>& dry_runs) {
  Job job = read_job(std::string{std::istreambuf_iterator<char>(std::cin), {}}, dry_runs);
  job.world = world;
  job.attempt = world.restart_count + 1;
  return job;
}

// The number of the last attempt that this rank recorded, and one more.
int next_attempt(const Job& job) {
  int last = 0;
  for (const auto& event : read_events(rank_event_file(job.folder, job.world.rank))) {
    last = std::max(last, event.value("attempt", 0));
  }
  return last + 1;
}

// Rank 0 does for all of them what assay train does before it starts its ranks. Returns the run folder, which is this
// job's as long as `lock` lives; "" if the training in it has ended.
std::filesystem::path begin_together(CommunicatorGroup& group, const LoadedRecipe& loaded,
                                     const std::optional<std::string>& output, FileDescriptor& lock) {
  const auto outcomes = try_on_all_ranks(group, [&]() -> std::string {
    if (group.rank() != 0) return "";
    for (const auto& warning : loaded.warnings) log_warning(warning);
    const auto folder = training_folder(loaded.recipe, output);
    if (has_ended(folder, loaded.recipe)) return "";
    lock = open_run_folder(folder, loaded, /*needs_limits=*/false);
    write_job_file(folder, {"train-1", "train", loaded.recipe, loaded.recipe, "", Json::object()});
    return folder.string();
  });
  if (!outcomes[0].ok) throw Error(outcomes[0].kind, outcomes[0].text);
  return outcomes[0].text;
}

// Rank 0 records how the attempt ended, as a launcher of this program does, and a run that has ended gets its
// checksums.
void end_together(CommunicatorGroup& group, const Job& job, const std::filesystem::path& run_folder, int exit_code,
                  double seconds) {
  int signal = 0;
  for (const auto& received : group.all_gather(std::to_string(received_stop_signal()))) {
    signal = std::max(signal, std::stoi(received));
  }
  if (group.rank() != 0) return;
  EventWriter(job.folder / "events" / "launcher.jsonl", -1, job.attempt)
      .write("end", 0,
             {{"exit_code", exit_code},
              {"interrupted_by", exit_code == exit_done ? Json() : Json(signal)},
              {"seconds", seconds},
              {"root_cause", nullptr}});
  if (exit_code == exit_done) write_checksums(run_folder);
}

int run_recipe(const World& world, const std::vector<std::string>& arguments,
               const std::optional<std::string>& output) {
  if (arguments.empty()) throw Error(ErrorKind::usage, "assay-rank needs a recipe: assay-rank RECIPE [KEY=VALUE ...]");
  static const SystemClock clock;
  const double start = clock.wall_seconds();
  ResolveFacts facts;
  facts.world_size = world.world_size;
  facts.cuda_available = has_gpu();
  auto loaded = load_recipe(arguments.front(), {arguments.begin() + 1, arguments.end()}, facts);
  loaded.recipe.parallel.nproc_per_node = world.local_world_size;
  loaded.origins["parallel.nproc_per_node"] = "environment";
  check_inputs(loaded.recipe);
  Job job;
  job.world = world;
  job.recipe = loaded.recipe;
  job.communicator = make_communicator(world, job.recipe.parallel.timeout_seconds, clock);
  CommunicatorGroup group(*job.communicator);
  FileDescriptor lock;
  const auto run_folder = begin_together(group, loaded, output, lock);
  if (run_folder.empty()) return exit_done;
  job.folder = run_folder / "jobs" / "train-1";
  for (const auto& attempt : group.all_gather(std::to_string(next_attempt(job)))) {
    job.attempt = std::max(job.attempt, std::stoi(attempt));
  }
  const int exit_code = run_train(job);
  end_together(group, job, run_folder, exit_code, clock.wall_seconds() - start);
  return exit_code;
}

int run_job(const Job& job, const std::vector<Recipe>& dry_runs) {
  if (job.kind == "train") return run_train(job);
  if (job.kind == "collective") return run_collective_check(job);
  if (job.kind == "verify") return run_verify(job);
  if (job.kind == "fit_search") return run_fit_search(job);
  if (job.kind == "fit_trials") return run_fit_trials(job);
  ASSAY_CHECK(job.kind == "dry_run");
  return run_dry_run_job(dry_runs);
}

// torchrun names a file for the words of a failed rank.
void tell_launcher(const World& world, const Error& error) {
  if (!world.error_file) return;
  RankFailure failure;
  failure.rank = world.rank;
  failure.host = host_name();
  failure.pid = ::getpid();
  failure.exit_code = exit_code_of(error.kind());
  failure.reason = "exited";
  failure.error_kind = name_of(error.kind());
  failure.message = error.what();
  failure.time = utc_now();
  try {
    write_error_file(*world.error_file, failure);
  } catch (const std::exception& problem) {
    log_warning(problem.what());
  }
}

int run(int argc, char** argv) {
  cxxopts::Options options("assay-rank", "One rank of a job; its place in the world comes from the environment.");
  options.positional_help("RECIPE [KEY=VALUE ...]").show_positional_help();
  options.add_options()("job", "read a job as JSON from standard input")(
      "output", "run folder", cxxopts::value<std::string>())("help", "this text")("version", "the version");
  const auto parsed = options.parse(argc, argv);
  if (parsed.count("help") > 0) {
    std::printf("%s", options.help({""}).c_str());
    return exit_done;
  }
  if (parsed.count("version") > 0) {
    std::printf("assay-rank %s\n", ASSAY_VERSION);
    return exit_done;
  }
  start_log("", LogLevel::normal);
  const World world = world_from_environment();
  try {
    std::vector<Recipe> dry_runs;
    if (parsed.count("job") > 0) return run_job(job_from_input(world, dry_runs), dry_runs);
    std::optional<std::string> output;
    if (parsed.count("output") > 0) output = parsed["output"].as<std::string>();
    return run_recipe(world, parsed.unmatched(), output);
  } catch (...) {
    const Error error = current_error();
    tell_launcher(world, error);
    throw error;
  }
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  using namespace assay;
  open_missing_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a rank that is gone is an Error{communication} of the others, not their death
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is an Error that all ranks hear of
  try {
    return run(argc, argv);
  } catch (const cxxopts::exceptions::exception& error) {
    log_error(error.what());
    return exit_usage;
  } catch (...) {
    const Error error = current_error();
    log_error(error.what());
    return exit_code_of(error.kind());
  }
}
