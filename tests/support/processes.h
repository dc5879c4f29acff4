#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace assay {

/// Polls until the condition holds; false after so many seconds.
inline bool wait_until(const std::function<bool()>& condition, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// What /proc/PID/stat has after the process's name: state, parent and more. Empty if there is no such process.
inline std::string process_facts(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  if (!std::getline(file, stat, '\0')) return "";
  return stat.substr(stat.rfind(") ") + 2);
}

/// A process that runs or is stopped; a zombie that its parent has not reaped yet is not alive.
inline bool is_alive(int pid) {
  const auto facts = process_facts(pid);
  return !facts.empty() && facts[0] != 'Z';
}

/// What the children of this process leave behind becomes its child too, instead of init's.
inline void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

/// Command lines of the children that are alive: "PID: program arguments".
inline std::vector<std::string> living_children() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto facts = process_facts(std::stoi(name));
    if (facts.empty() || facts[0] == 'Z' || std::stoi(facts.substr(2)) != ::getpid()) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::string command;
    std::getline(file, command);
    std::replace(command.begin(), command.end(), '\0', ' ');
    found.push_back(name + ": " + command);
  }
  return found;
}

/// Kills and reaps all children, also those that come up as orphans of killed ones.
inline void kill_children() {
  for (auto children = living_children(); !children.empty(); children = living_children()) {
    for (const auto& child : children) ::kill(std::stoi(child), SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace assay
