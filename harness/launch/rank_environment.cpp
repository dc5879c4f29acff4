#include "harness/launch/rank_environment.h"

#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace assay {
namespace {

std::map<std::string, std::string> inherited_environment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

}  // namespace

RankFiles files_of(const LaunchSpec& spec, int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank_%05d", rank);
  const auto logs = spec.folder / "logs";
  const auto own = spec.folder / std::to_string(rank);
  const std::string base = name;
  return {.standard_output = spec.torchrun_layout ? own / "stdout.log" : logs / (base + ".out"),
          .standard_error = spec.torchrun_layout ? own / "stderr.log" : logs / (base + ".err"),
          .error = spec.torchrun_layout ? own / "error.json" : logs / (base + ".error.json"),
          .heartbeat = spec.folder / "heartbeat" / base,
          .events = spec.folder / "events" / (base + ".jsonl")};
}

std::vector<std::string> environment_of(const LaunchSpec& spec, int rank, int master_port, int listen_fd) {
  auto variables = inherited_environment();
  for (const auto& [name, value] : spec.environment) variables[name] = value;
  const RankFiles files = files_of(spec, rank);
  const std::string place = std::to_string(rank);
  const std::string size = std::to_string(spec.nproc);
  variables.erase("ASSAY_LISTEN_FD");
  const std::map<std::string, std::string> contract{
      {"RANK", place},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", place},
      {"LOCAL_WORLD_SIZE", size},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", spec.role},
      {"ROLE_RANK", place},
      {"ROLE_WORLD_SIZE", size},
      {"MASTER_ADDR", spec.master_addr},
      {"MASTER_PORT", std::to_string(master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(spec.attempt - 1)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(spec.max_restarts)},
      {"TORCHELASTIC_RUN_ID", spec.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCHELASTIC_ERROR_FILE", files.error.string()},
      {kHeartbeatVariable, files.heartbeat.string()},
  };
  for (const auto& [name, value] : contract) variables[name] = value;
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (spec.nproc > 1) variables.try_emplace("OMP_NUM_THREADS", "1");
  if (listen_fd >= 0) variables["ASSAY_LISTEN_FD"] = std::to_string(listen_fd);
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

}  // namespace assay
