#include "harness/acceptance/rank_program.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/core/clock.h"
#include "harness/core/files.h"
#include "harness/launch/child_process.h"
#include "harness/launch/rank_failure.h"
#include "harness/launch/rank_shim.h"
#include "harness/launch/signal_catcher.h"
#include "harness/recipe/recipe_json.h"

namespace assay {
namespace {

FileDescriptor memory_file(const char* name) {
  FileDescriptor file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) throw_errno("memfd_create", name);
  return file;
}

std::string content_of(const FileDescriptor& file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) throw_errno("stat", "memory file");
  std::string text(static_cast<std::size_t>(facts.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const auto count = ::pread(file.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count <= 0) throw_errno("read", "memory file");
    done += static_cast<std::size_t>(count);
  }
  return text;
}

/// The end of what a process wrote, for a message.
std::string last_lines(const std::string& text) {
  constexpr std::size_t kMostBytes = 2000;
  const auto lines = split_lines(text.size() > kMostBytes ? text.substr(text.size() - kMostBytes) : text);
  std::string joined;
  for (std::size_t i = lines.size() > 5 ? lines.size() - 5 : 0; i < lines.size(); ++i) {
    joined += (joined.empty() ? "" : "\n") + lines[i];
  }
  return joined.empty() ? "it wrote nothing" : joined;
}

/// The kind that an exit code stands for (core/error.h); a signal is internal.
ErrorKind kind_of_exit(int exit_code) {
  if (exit_code == exit_rejected) return ErrorKind::memory;
  if (exit_code == exit_usage) return ErrorKind::recipe;
  return ErrorKind::internal;
}

}  // namespace

Interrupted::Interrupted(int signal) : Error(ErrorKind::internal, "interrupted by " + signal_name(signal)) {}

std::filesystem::path find_rank_program() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "assay-rank";
  if (std::filesystem::exists(program)) return program;
  throw Error(ErrorKind::usage,
              "there is no " + program.string() + ": build the half that needs LibTorch (./dev build)");
}

RankOutput run_rank_program(const Json& job, double timeout_seconds) {
  const auto input = memory_file("job"), output = memory_file("output"), errors = memory_file("errors");
  const auto text = dump_json(job);
  write_all(input.get(), text.data(), text.size(), "job");
  ::lseek(input.get(), 0, SEEK_SET);

  ChildProcess::Options options;
  options.command = shim_command({find_rank_program().string(), "--job"}, /*kept_fd=*/-1);  // it dies with this process
  for (char** variable = environ; *variable != nullptr; ++variable) options.environment.emplace_back(*variable);
  options.standard_input = input.get();
  options.standard_output = output.get();
  options.standard_error = errors.get();
  SignalCatcher signals;
  ChildProcess process(options);
  const SystemClock clock;
  const double deadline = clock.wall_seconds() + timeout_seconds;
  std::optional<ExitStatus> status;
  while (!(status = process.poll())) {
    const double left = deadline - clock.wall_seconds();
    if (left <= 0)
      return {exit_incomplete, "", "it did not end within " + std::to_string(static_cast<int>(timeout_seconds)) + " s"};
    if (const auto caught = signals.wait(left); !caught.empty()) throw Interrupted(caught.front());
  }
  const std::string killed = status->signal ? "killed by " + signal_name(*status->signal) + "; " : "";
  const int code = status->code.value_or(exit_incomplete);
  // 126 and 127 are the shim's: it could not start the program.
  if (status->signal || code > exit_incomplete) return {exit_incomplete, "", killed + content_of(errors)};
  return {code, content_of(output), content_of(errors)};
}

Error failure_of(const RankOutput& output) { return {kind_of_exit(output.exit_code), last_lines(output.err)}; }

DryRunOutcome run_dry_run(const std::vector<Recipe>& recipes) {
  Json job{{"kind", "dry_run"}, {"recipes", Json::array()}};
  for (const auto& recipe : recipes) job["recipes"].push_back(recipe_to_json(recipe));
  const auto output = run_rank_program(job);
  DryRunOutcome outcome;
  if (output.exit_code != exit_done) {
    const auto failure = failure_of(output);
    outcome.error_kind = failure.kind();
    outcome.message = failure.what();
    return outcome;
  }
  outcome.rows = parse_json(output.out, "output of the dry run");
  ASSAY_CHECK(outcome.rows.is_array() && outcome.rows.size() == recipes.size());
  return outcome;
}

}  // namespace assay
