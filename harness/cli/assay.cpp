// The program `assay`: finds the command, and turns an Error into one message and an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/log.h"
#include "harness/core/nearest.h"
#include "harness/launch/rank_shim.h"

namespace assay {
namespace {

std::string help() {
  std::string text = "assay accepts GPU servers: does this machine train the planned model, as planned?\n\nUsage:\n";
  for (const auto& command : all_commands()) {
    const auto call = std::string("  assay ") + command.name + " " + command.arguments;
    text += call + (call.size() < 48 ? std::string(48 - call.size(), ' ') : "  ") + command.summary + "\n";
  }
  return text + "\nassay COMMAND --help shows the options of one command; assay --version the version.\n";
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& command : all_commands()) {
    if (name == command.name) return command;
    names.emplace_back(command.name);
  }
  const auto nearest = nearest_name(name, names);
  throw Error(ErrorKind::usage, "there is no command \"" + name + "\"" +
                                    (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                                    " (assay --help lists the commands)");
}

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return exit_done;
}

/// What was printed must have arrived: a script takes exit code 0 for it.
int flushed(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  const int code = errno;
  throw Error(ErrorKind::io, std::string("cannot write to standard output: ") + std::strerror(code));
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) {
    std::fputs(help().c_str(), stderr);
    return exit_usage;
  }
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") return print(help());
  if (words[0] == "--version") return print("assay " ASSAY_VERSION "\n");
  const auto& command = find_command(words[0]);
  const auto line = parse_command_line(command, {words.begin() + 1, words.end()});
  if (line.has("help")) return print(help_of(command));
  start_log("", line.has("quiet") ? LogLevel::quiet : LogLevel::normal);
  return command.run(line);
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  assay::open_missing_standard_streams();
  // The launcher starts ranks through this executable: before anything else.
  if (const auto exit_code = assay::run_rank_shim_if_asked(argc, argv)) return *exit_code;
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is an Error
  try {
    return assay::flushed(assay::run({argv + 1, argv + argc}));
  } catch (const assay::Error& error) {
    std::fprintf(stderr, "assay: %s\n", error.what());
    return assay::exit_code_of(error.kind());
  } catch (const std::filesystem::filesystem_error& problem) {
    const auto error = assay::error_of(problem);
    std::fprintf(stderr, "assay: %s\n", error.what());
    return assay::exit_code_of(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "assay: internal error: %s\n", error.what());
    return assay::exit_incomplete;
  }
}
