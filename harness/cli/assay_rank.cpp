// assay-rank: one rank of a job. Given a job by assay (JSON on standard input), or a recipe on its command line when it
// is started by torchrun --no-python, srun or mpirun.

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "harness/acceptance/run_folder.h"
#include "harness/cli/read_job.h"
#include "harness/core/clock.h"
#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/core/host.h"
#include "harness/core/log.h"
#include "harness/launch/rank_failure.h"
#include "harness/machine/inventory.h"
#include "harness/recipe/load_recipe.h"
#include "harness/recipe/recipe_json.h"
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

// Hash of the recipe that a rank recorded in this job folder; "" if it recorded none that can be read.
std::string recorded_recipe_hash(const std::filesystem::path& job_folder) try {
  for (const auto& event : read_events(rank_event_file(job_folder, 0))) {
    if (event.value("kind", "") == "run") return event.value("recipe_hash", "");
  }
  return "";
} catch (const std::exception&) {
  return "";
}

// A group that torchrun restarted goes on in the newest folder of its recipe.
std::filesystem::path default_folder(const Job& job) {
  std::filesystem::path newest;
  if (job.world.restart_count > 0 && std::filesystem::is_directory("runs")) {
    for (const auto& entry : std::filesystem::directory_iterator("runs")) {
      const bool same = recorded_recipe_hash(entry.path() / "jobs" / "train-1") == recipe_hash(job.recipe);
      if (same) newest = std::max(newest, entry.path());
    }
  }
  return newest.empty() ? std::filesystem::path("runs") / (job.recipe.name + "-" + utc_now_compact()) : newest;
}

// The number of the last attempt that this rank recorded, and one more.
int next_attempt(const Job& job) {
  int last = 0;
  for (const auto& event : read_events(rank_event_file(job.folder, job.world.rank))) {
    last = std::max(last, event.value("attempt", 0));
  }
  return last + 1;
}

// The lock of assay train, held by rank 0; if another process has the folder, all ranks hear of it.
FileDescriptor lock_together(CommunicatorGroup& group, const std::filesystem::path& run_folder) {
  FileDescriptor lock;
  const auto outcomes = try_on_all_ranks(group, [&] {
    if (group.rank() == 0) {
      make_folders(run_folder);
      lock = lock_run_folder(run_folder);
    }
    return std::string();
  });
  if (!outcomes[0].ok) throw Error(outcomes[0].kind, outcomes[0].text);
  return lock;
}

// All ranks must write into one folder, and count attempts alike: rank 0 chooses the folder, the furthest rank the
// number. The folder is this job's as long as the result lives.
FileDescriptor agree(Job& job, const std::string& asked) {
  static const SystemClock clock;
  job.communicator = make_communicator(job.world, job.recipe.parallel.timeout_seconds, clock);
  CommunicatorGroup group(*job.communicator);
  const std::string own = asked.empty() && group.rank() == 0 ? default_folder(job).string() : asked;
  const std::filesystem::path run_folder = group.all_gather(own).front();
  auto lock = lock_together(group, run_folder);
  job.folder = run_folder / "jobs" / "train-1";
  for (const auto& attempt : group.all_gather(std::to_string(next_attempt(job)))) {
    job.attempt = std::max(job.attempt, std::stoi(attempt));
  }
  return lock;
}

int run_recipe(const World& world, const std::vector<std::string>& arguments, const std::string& output) {
  if (arguments.empty()) throw Error(ErrorKind::usage, "assay-rank needs a recipe: assay-rank RECIPE [KEY=VALUE ...]");
  ResolveFacts facts;
  facts.world_size = world.world_size;
  facts.cuda_available = has_gpu();
  const auto loaded = load_recipe(arguments.front(), {arguments.begin() + 1, arguments.end()}, facts);
  Job job;
  job.world = world;
  job.recipe = loaded.recipe;
  const auto lock = agree(job, output);
  if (world.rank == 0) {
    for (const auto& warning : loaded.warnings) log_warning(warning);
    log_info("events and checkpoints: " + job.folder.string());
  }
  return run_train(job);
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
      "output", "run folder", cxxopts::value<std::string>()->default_value(""))("help", "this text")(
      "version", "the version")("arguments", "", cxxopts::value<std::vector<std::string>>()->default_value(""));
  options.parse_positional("arguments");
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
    std::vector<std::string> arguments;
    if (parsed.count("arguments") > 0) arguments = parsed["arguments"].as<std::vector<std::string>>();
    return run_recipe(world, arguments, parsed["output"].as<std::string>());
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
