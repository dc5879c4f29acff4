#include "harness/launch/launch_command.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cxxopts.hpp>
#include <iostream>
#include <thread>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "harness/core/log.h"
#include "harness/core/units.h"
#include "harness/launch/world.h"

namespace assay {
namespace {

cxxopts::Options torchrun_options() {
  cxxopts::Options options("assay launch", "Starts PROGRAM on every rank of this node, as torchrun does.\n");
  options.custom_help("[options] -- PROGRAM ARGS");
  const auto text = [] { return cxxopts::value<std::string>(); };
  options.add_options()("nproc-per-node",
                        "ranks: a number, cpu (one a CPU), gpu, or auto (gpu where there is one, else cpu)", text(),
                        "N")("nnodes", "number of nodes; only 1 is built", text(), "1")(
      "node-rank", "number of this node; only 0 is built", text(), "0")(
      "rdzv-endpoint", "HOST:PORT of the rendezvous, in place of the two below", text(), "HOST:PORT")(
      "master-addr", "address of rank 0", text(), "127.0.0.1")("master-port", "port of the rendezvous", text(),
                                                               "29500")("standalone", "a free port on this host")(
      "rdzv-backend", "static or c10d: alike on one node", text(), "static")(
      "rdzv-id", "name of the job, TORCHELASTIC_RUN_ID", text(), "none")("role", "ROLE_NAME of the ranks", text(),
                                                                         "default")(
      "max-restarts", "start all ranks again after a failure, so many times", text(), "0")(
      "monitor-interval", "seconds between two looks at the ranks", text(), "0.1")(
      "log-dir", "folder of the logs: <run id>_xxxxxx/attempt_N/RANK/{stdout.log,stderr.log,error.json}", text(),
      "DIR")("r,redirects", "into the log files only: 0 nothing, 1 stdout, 2 stderr, 3 both", text(), "0")(
      "t,tee", "on the terminal although --redirects names it, same values", text(), "0")(
      "no-python", "accepted: PROGRAM is always executed itself")("h,help", "this text");
  return options;
}

/// Options of a command, with torchrun's PET_<NAME> variables behind them.
class OptionReader {
 public:
  explicit OptionReader(const cxxopts::ParseResult& parsed) : parsed_(parsed) {}

  std::optional<std::string> text(const std::string& name) const {
    if (parsed_.count(name) != 0) return parsed_[name].as<std::string>();
    return process_environment(variable_of(name));
  }

  bool flag(const std::string& name) const {
    const auto variable = process_environment(variable_of(name));
    return parsed_.count(name) != 0 || (variable && *variable != "0");
  }

  int integer(const std::string& name, int otherwise, int smallest, int largest) const {
    const auto value = text(name);
    return value ? to_integer(name, *value, smallest, largest) : otherwise;
  }

  static int to_integer(const std::string& name, const std::string& value, int smallest, int largest) {
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, failure] = std::from_chars(value.data(), end, number);
    if (failure != std::errc() || stop != end || number < smallest || number > largest) {
      throw Error(ErrorKind::usage, "--" + name + " " + value + ": expected a number from " + std::to_string(smallest) +
                                        " to " + std::to_string(largest));
    }
    return number;
  }

 private:
  static std::string variable_of(const std::string& option) {
    std::string name = "PET_";
    for (const char c : option) name += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    return name;
  }

  const cxxopts::ParseResult& parsed_;
};

/// GPUs this process may use: as CUDA_VISIBLE_DEVICES lists them, else as the driver does.
int count_gpus() {
  std::error_code none;
  const std::filesystem::directory_iterator cards("/proc/driver/nvidia/gpus", none);
  const int num_cards = none ? 0 : static_cast<int>(std::distance(begin(cards), end(cards)));
  const auto visible = process_environment("CUDA_VISIBLE_DEVICES");
  if (!visible) return num_cards;
  const bool is_none = visible->empty() || *visible == "-1";
  return is_none ? 0
                 : std::min<int>(num_cards, 1 + static_cast<int>(std::count(visible->begin(), visible->end(), ',')));
}

int read_nproc(const OptionReader& options) {
  const std::string value = options.text("nproc-per-node").value_or("1");
  const int num_cpus = std::max(1U, std::thread::hardware_concurrency());
  if (value == "cpu") return num_cpus;
  if (value != "gpu" && value != "auto") return OptionReader::to_integer("nproc-per-node", value, 1, 65536);
  const int num_gpus = count_gpus();
  if (value == "gpu" && num_gpus == 0) throw Error(ErrorKind::usage, "--nproc-per-node gpu: no GPU is visible here");
  return num_gpus > 0 ? num_gpus : num_cpus;
}

void read_rendezvous(const OptionReader& options, LaunchSpec& spec) {
  const std::string backend = options.text("rdzv-backend").value_or("static");
  if (backend != "static" && backend != "c10d") {
    throw Error(ErrorKind::usage, "--rdzv-backend " + backend + ": expected static or c10d");
  }
  if (options.flag("standalone")) return;  // localhost and a free port, as the spec has it
  spec.master_addr = options.text("master-addr").value_or(spec.master_addr);
  spec.master_port = options.integer("master-port", 29500, 1, 65535);
  if (const auto endpoint = options.text("rdzv-endpoint"); endpoint && !endpoint->empty()) {
    const auto colon = endpoint->rfind(':');
    spec.master_addr = endpoint->substr(0, colon);
    if (colon != std::string::npos) {
      spec.master_port = OptionReader::to_integer("rdzv-endpoint", endpoint->substr(colon + 1), 0, 65535);
    }
  }
  if (spec.master_addr.empty()) throw Error(ErrorKind::usage, "the rendezvous has no host: give HOST:PORT");
}

void refuse_more_nodes(const OptionReader& options) {
  const std::string nnodes = options.text("nnodes").value_or("1");
  if (nnodes != "1" && nnodes != "1:1") {
    throw Error(ErrorKind::usage, "--nnodes " + nnodes + " is not built yet: only one node, --nnodes 1");
  }
  const std::string node_rank = options.text("node-rank").value_or("0");
  if (node_rank != "0") throw Error(ErrorKind::usage, "--node-rank " + node_rank + ": the only node is 0");
}

LaunchSpec spec_of(const OptionReader& options) {
  refuse_more_nodes(options);
  LaunchSpec spec;
  spec.nproc = read_nproc(options);
  read_rendezvous(options, spec);
  spec.run_id = options.text("rdzv-id").value_or(spec.run_id);
  spec.role = options.text("role").value_or(spec.role);
  spec.max_restarts = options.integer("max-restarts", 0, 0, INT_MAX);
  const std::string interval = options.text("monitor-interval").value_or("0.1");
  spec.monitor_interval_seconds = parse_number(interval).value_or(-1);
  if (spec.monitor_interval_seconds <= 0) {
    throw Error(ErrorKind::usage, "--monitor-interval " + interval + ": expected seconds above 0");
  }
  spec.hidden_streams = options.integer("redirects", 0, 0, 3) & ~options.integer("tee", 0, 0, 3);
  spec.grace_seconds = 30;
  if (const auto timeout = process_environment("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) {
    spec.grace_seconds = parse_number(*timeout).value_or(spec.grace_seconds);
  }
  spec.interrupt_grace_seconds = spec.grace_seconds;
  spec.torchrun_layout = true;
  return spec;
}

std::filesystem::path make_run_folder(const std::filesystem::path& log_dir, std::string run_id) {
  std::replace(run_id.begin(), run_id.end(), '/', '_');
  const auto parent = log_dir.empty() ? std::filesystem::temp_directory_path() : log_dir;
  make_folders(parent);
  std::string pattern =
      (parent / ((log_dir.empty() ? "assay_launch_" : run_id + "_") + std::string("XXXXXX"))).string();
  if (::mkdtemp(pattern.data()) == nullptr) throw_errno("mkdtemp", pattern);
  return pattern;
}

bool would_fail_again(const RankFailure& failure) {
  const bool not_started = failure.exit_code == 126 || failure.exit_code == 127;
  return not_started ||
         (!failure.error_kind.empty() && exit_code_of(error_kind_from_name(failure.error_kind)) == exit_usage);
}

}  // namespace

LaunchCommand parse_launch_command(const std::vector<std::string>& arguments) {
  const auto separator = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> words{"assay launch"};
  for (auto word = arguments.begin(); word != separator; ++word) {
    words.push_back(*word);
    if (!word->starts_with("--")) continue;
    auto& name = words.back();
    std::replace(name.begin(), std::find(name.begin(), name.end(), '='), '_', '-');
  }
  std::vector<const char*> pointers;
  for (const auto& word : words) pointers.push_back(word.c_str());
  auto options = torchrun_options();
  LaunchCommand command;
  try {
    const auto parsed = options.parse(static_cast<int>(pointers.size()), pointers.data());
    command.show_help = parsed.count("help") != 0;
    if (command.show_help) return command;
    if (!parsed.unmatched().empty()) {
      throw Error(ErrorKind::usage, "\"" + parsed.unmatched().front() + "\" is no option: put -- before the program");
    }
    const OptionReader reader(parsed);
    command.spec = spec_of(reader);
    command.log_dir = reader.text("log-dir").value_or("");
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ErrorKind::usage, std::string("assay launch: ") + error.what() + "; see assay launch --help");
  }
  if (separator != arguments.end()) command.spec.program.assign(separator + 1, arguments.end());
  if (command.spec.program.empty()) throw Error(ErrorKind::usage, "no program: assay launch [options] -- PROGRAM ARGS");
  return command;
}

int run_launch(const std::vector<std::string>& arguments) {
  LaunchCommand command = parse_launch_command(arguments);
  if (command.show_help) {
    std::cout << torchrun_options().help();
    return exit_done;
  }
  // Who reads the terminal may leave; the exit code is for others.
  ::signal(SIGPIPE, SIG_IGN);
  LaunchSpec& spec = command.spec;
  if (spec.nproc > 1 && !process_environment("OMP_NUM_THREADS")) {
    log_info("OMP_NUM_THREADS is set to 1 for each rank, so that they do not overload this node; set it to tune");
  }
  const auto run_folder = make_run_folder(command.log_dir, spec.run_id);
  log_info("logs: " + run_folder.string());
  for (;; ++spec.attempt) {
    spec.folder = run_folder / ("attempt_" + std::to_string(spec.attempt - 1));
    const LaunchResult result = launch(spec);
    if (!result.root_cause) return result.interrupted_by ? 128 + *result.interrupted_by : result.exit_code;
    const bool may_restart = spec.attempt <= spec.max_restarts && !result.interrupted_by;
    if (!may_restart || would_fail_again(*result.root_cause)) {
      std::cerr << failure_block(spec.program.front(), result.failures) << std::flush;
      return result.exit_code;
    }
    log_warning(describe(*result.root_cause) + "; restart " + std::to_string(spec.attempt) + " of " +
                std::to_string(spec.max_restarts));
  }
}

}  // namespace assay
