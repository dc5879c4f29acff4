#include "harness/machine/inventory.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "harness/core/units.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// Whole text of a small file of /proc or /sys (their size is 0, so they cannot be mapped); empty if it cannot be read.
std::string read_small_file(const fs::path& path) {
  std::ifstream stream(path);
  std::stringstream text;
  if (stream) text << stream.rdbuf();
  return text.str();
}

std::string trimmed(std::string text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

/// What follows `key` and a colon (or `separator`) in the first line that starts with it; empty if there is none.
std::string value_of(const std::string& text, const std::string& key, char separator = ':') {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find(separator);
    if (at != std::string::npos && trimmed(line.substr(0, at)) == key) return trimmed(line.substr(at + 1));
  }
  return "";
}

/// "123 kB" as bytes.
std::optional<std::int64_t> kib_of(const std::string& text) {
  const auto number = parse_number(text.substr(0, text.find(' ')));
  return number ? std::optional(static_cast<std::int64_t>(*number) * 1024) : std::nullopt;
}

template <typename Value>
void set_fact(Json& object, const std::string& key, const std::optional<Value>& value, const std::string& reason) {
  if (value)
    object[key] = *value;
  else
    object[key] = nullptr, object[key + "_reason"] = reason;
}

void set_text(Json& object, const std::string& key, const std::string& text, const std::string& reason) {
  set_fact(object, key, text.empty() ? std::nullopt : std::optional(text), reason);
}

/// Cores that this process may use: those of its affinity, at most the cgroup's quota (cgroup v2 cpu.max).
std::int64_t num_cores_available(const fs::path& root) {
  cpu_set_t set;
  std::int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  std::istringstream quota(read_small_file(root / "sys/fs/cgroup/cpu.max"));
  double allowed = 0, period = 0;
  if (quota >> allowed >> period && period > 0) {
    cores = std::min(cores, std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(allowed / period))));
  }
  return cores;
}

Json cpu_facts(const fs::path& root) {
  Json cpu;
  const auto text = read_small_file(root / "proc/cpuinfo");
  auto model = value_of(text, "model name");
  if (model.empty()) model = value_of(text, "CPU part");
  set_text(cpu, "model", model, "/proc/cpuinfo does not name it");
  cpu["num_cores"] = sysconf(_SC_NPROCESSORS_CONF);
  cpu["num_cores_available"] = num_cores_available(root);
  return cpu;
}

/// What the kernel takes back from a cgroup when its memory gets short: memory.current counts the cache of files.
double reclaimable_bytes(const fs::path& cgroup) {
  const auto text = read_small_file(cgroup / "memory.stat");
  double sum = 0;
  for (const char* key : {"inactive_file", "active_file", "slab_reclaimable"}) {
    sum += parse_number(value_of(text, key, ' ')).value_or(0);
  }
  return sum;
}

Json memory_facts(const fs::path& root) {
  Json memory;
  const auto text = read_small_file(root / "proc/meminfo");
  const auto total = kib_of(value_of(text, "MemTotal"));
  auto available = kib_of(value_of(text, "MemAvailable"));
  // cgroup v2: "max" or bytes.
  const auto cgroup = root / "sys/fs/cgroup";
  const auto limit = parse_number(trimmed(read_small_file(cgroup / "memory.max")));
  const auto used = parse_number(trimmed(read_small_file(cgroup / "memory.current")));
  if (limit && used && available) {
    const double held = std::max(0.0, *used - reclaimable_bytes(cgroup));
    const auto left = static_cast<std::int64_t>(std::max(0.0, *limit - held));
    available = std::min(*available, left);
    memory["cgroup_limit_bytes"] = static_cast<std::int64_t>(*limit);
  }
  set_fact(memory, "total_bytes", total, "/proc/meminfo has no MemTotal");
  set_fact(memory, "available_bytes", available, "/proc/meminfo has no MemAvailable");
  return memory;
}

Json disk_facts(fs::path folder) {
  Json disk;
  std::error_code code;
  folder = fs::absolute(folder, code);
  while (!fs::exists(folder, code) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  const auto space = fs::space(folder, code);
  disk["path"] = folder.string();
  const auto reason = code ? code.message() : "";
  set_fact(disk, "free_bytes", code ? std::nullopt : std::optional(space.available), reason);
  set_fact(disk, "total_bytes", code ? std::nullopt : std::optional(space.capacity), reason);
  return disk;
}

Json numa_facts(const fs::path& root) {
  Json nodes = Json::array();
  std::error_code code;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", code)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("node") && name.size() > 4 && std::isdigit(static_cast<unsigned char>(name[4])))
      folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const auto& folder : folders) {
    Json node{{"node", folder.filename().string()}, {"cpus", trimmed(read_small_file(folder / "cpulist"))}};
    // "Node 0 MemTotal: 123 kB"
    std::istringstream words(read_small_file(folder / "meminfo"));
    std::string before, word;
    for (; words >> word; before = word) {
      if (before == "MemTotal:") node["total_bytes"] = kib_of(word).value_or(0);
    }
    nodes.push_back(node);
  }
  return nodes;
}

Json gpu_facts(const fs::path& root) {
  Json gpus{{"found", Json::array()}};
  const auto folder = root / "proc/driver/nvidia/gpus";
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    gpus["found"].push_back({{"model", value_of(read_small_file(entry.path() / "information"), "Model")},
                             {"bus", entry.path().filename().string()}});
  }
  if (gpus["found"].empty()) gpus["reason"] = "the kernel has no NVIDIA driver (/proc/driver/nvidia/gpus is not there)";
  return gpus;
}

Json environment_facts() {
  constexpr std::array<std::string_view, 8> prefixes{"OMP_",  "MKL_",     "NCCL_",  "GLOO_",
                                                     "CUDA_", "PYTORCH_", "TORCH_", "ASSAY_"};
  std::vector<std::pair<std::string, std::string>> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const auto equal = text.find('=');
    if (equal == std::string_view::npos) continue;
    const bool counts =
        std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return text.starts_with(prefix); });
    if (counts) found.emplace_back(text.substr(0, equal), text.substr(equal + 1));
  }
  std::sort(found.begin(), found.end());
  Json variables = Json::object();
  for (const auto& [name, value] : found) variables[name] = value;
  return variables;
}

}  // namespace

Json read_inventory(const fs::path& folder, const fs::path& root) {
  Json machine;
  utsname names{};
  uname(&names);
  machine["host"] = names.nodename;
  machine["kernel"] = std::string(names.sysname) + " " + names.release;
  auto os = value_of(read_small_file(root / "etc/os-release"), "PRETTY_NAME", '=');
  std::erase(os, '"');
  set_text(machine, "os", os, "/etc/os-release does not name it");
  machine["cpu"] = cpu_facts(root);
  machine["memory"] = memory_facts(root);
  machine["disk"] = disk_facts(folder);
  machine["numa_nodes"] = numa_facts(root);
  if (machine["numa_nodes"].empty()) machine["numa_nodes_reason"] = "the kernel lists none in /sys/devices/system/node";
  machine["gpus"] = gpu_facts(root);
  machine["versions"] = {{"assay", ASSAY_VERSION},
                         {"compiler", "g++ " __VERSION__},
                         {"libtorch", nullptr},
                         {"libtorch_reason", "told by the ranks: jobs/*/events/rank_*.jsonl, kind run"}};
  machine["environment"] = environment_facts();
  return machine;
}

bool has_gpu(const fs::path& root) {
  constexpr std::string_view prefix = "nvidia";
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(root / "dev", code)) {
    const auto name = entry.path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace assay
