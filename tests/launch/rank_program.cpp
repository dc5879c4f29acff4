// A rank whose behaviour is its arguments, done one after the other; also a launcher: "launch ..." is `assay launch
// ...`.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/heartbeat.h"
#include "harness/launch/launch_command.h"
#include "harness/launch/rank_shim.h"

namespace {

using namespace assay;

volatile sig_atomic_t asked_to_end = 0;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Writes $PROOF_FOLDER/<name>-<rank> with the text, so that a test can see that something happened.
void prove(const std::string& name, const std::string& text) {
  std::ofstream(variable("PROOF_FOLDER") + "/" + name + "-" + variable("RANK")) << text << std::flush;
}

void start_grandchild() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  prove("grandchild", std::to_string(child));
}

void accept_one() {
  const int connection = ::accept(std::atoi(variable("ASSAY_LISTEN_FD").c_str()), nullptr, nullptr);
  prove("accepted", connection >= 0 ? "yes" : "no");
}

void print_lines(int count) {
  for (int i = 0; i < count; ++i) std::printf("line %07d of rank %s ends here\n", i, variable("RANK").c_str());
  std::fflush(stdout);
}

void print_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) std::printf("%s\n", *entry);
  std::fflush(stdout);
}

void print_open_descriptors() {
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) std::printf("fd %d\n", fd);
  }
  std::fflush(stdout);
}

void write_error_event(const std::string& kind, const std::string& folder) {
  EventWriter events(folder + "/events/rank_0000" + variable("RANK") + ".jsonl", std::stoi(variable("RANK")),
                     std::stoi(variable("TORCHELASTIC_RESTART_COUNT")) + 1);
  events.write("error", 3, {{"error", kind}, {"message", "own words"}, {"phase", "backward"}});
}

void write_torchrun_error() {
  std::ofstream(variable("TORCHELASTIC_ERROR_FILE")) << R"({"message": {"message": "said in error.json"}})";
}

/// One word of the command line; `next` takes the one after it.
int act(const std::string& word, const std::function<std::string()>& next) {
  static std::unique_ptr<Heartbeat> heartbeat;
  if (word == "exit") std::_Exit(std::stoi(next()));
  if (word == "raise") {
    const int number = std::stoi(next());
    ::signal(number, SIG_DFL);  // sanitizers catch SIGSEGV
    ::raise(number);
  }
  if (word == "sleep") sleep_seconds(std::stod(next()));
  if (word == "say") std::cout << next() << std::endl;
  if (word == "say-part") std::cout << next() << std::flush;
  if (word == "complain") std::cerr << next() << std::endl;
  if (word == "echo-input") std::cout << std::cin.rdbuf() << std::flush;
  if (word == "lines") print_lines(std::stoi(next()));
  if (word == "environment") print_environment();
  if (word == "descriptors") print_open_descriptors();
  if (word == "grandchild") start_grandchild();
  if (word == "accept") accept_one();
  if (word == "error-file") write_torchrun_error();
  if (word == "ignore-term") ::signal(SIGTERM, SIG_IGN);
  if (word == "stop-itself") ::raise(SIGSTOP);
  if (word == "proof") prove(next(), std::to_string(::getpid()));
  if (word == "error-event") {
    const auto kind = next();
    write_error_event(kind, next());
  }
  if (word == "beat") {  // STEP PHASE
    if (!heartbeat) heartbeat = std::make_unique<Heartbeat>(variable(kHeartbeatVariable));
    const auto step = std::stoll(next());
    heartbeat->beat(step, static_cast<Phase>(std::stoi(next())));
  }
  if (word == "save-on-term") {  // waits for SIGTERM, then "saves" for a moment
    ::signal(SIGTERM, [](int) { asked_to_end = 1; });
    prove("ready", std::to_string(::getpid()));
    while (asked_to_end == 0) sleep_seconds(0.01);
    sleep_seconds(0.3);
    prove("saved", "yes");
  }
  return 0;
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "launch") return run_launch({argv + 2, argv + argc});
  const std::string rank = variable("RANK");
  int i = 1;
  bool mine = true;
  const auto next = [&] { return ++i < argc ? std::string(argv[i]) : std::string(); };
  for (; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("@")) {  // "@1" and what follows is for rank 1 only, "@" for all again
      mine = word.size() == 1 || word.substr(1) == rank;
    } else if (mine) {
      act(word, next);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = run_rank_shim_if_asked(argc, argv)) return *exit_code;
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return exit_code_of(error.kind());
  }
}
