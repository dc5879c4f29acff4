#include "harness/launch/world.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>

#include "harness/core/error.h"

namespace assay {
namespace {

/// The variables one launcher sets; a null name is a variable it does not have.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* node_rank;
  bool half_is_wrong;  ///< one of rank and world size alone is a mistake, not just another launcher's variable
};

// srun --mpi=pmix sets PMIX_RANK without a size, and an sbatch script has SLURM_PROCID without being a task.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", true},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, true},
    {"PMIx", "PMIX_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, false},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, true},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr, true},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID", false},
};

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const char* name) const { return name ? environment_(name) : std::nullopt; }

  std::optional<int> integer(const char* name, int smallest, int largest) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int number = 0;
    const char* end = value->data() + value->size();
    const auto [stop, failure] = std::from_chars(value->data(), end, number);
    if (failure != std::errc() || stop != end || number < smallest || number > largest) {
      throw Error(ErrorKind::usage, std::string(name) + "=\"" + *value + "\" is not an integer from " +
                                        std::to_string(smallest) + " to " + std::to_string(largest) +
                                        ": correct or unset it");
    }
    return number;
  }

  bool flag(const char* name) const {
    const auto value = text(name);
    if (!value || *value == "False" || *value == "false" || *value == "0") return false;
    if (*value == "True" || *value == "true" || *value == "1") return true;
    throw Error(ErrorKind::usage, std::string(name) + "=\"" + *value + "\" is neither True nor False");
  }

 private:
  const Environment& environment_;
};

const Launcher* find_launcher(const Reader& reader) {
  for (const auto& launcher : kLaunchers) {
    const bool has_rank = reader.text(launcher.rank).has_value();
    const bool has_size = reader.text(launcher.world_size).has_value();
    if (has_rank && has_size) return &launcher;
    if (has_rank != has_size && launcher.half_is_wrong) {
      const char* set = has_rank ? launcher.rank : launcher.world_size;
      throw Error(ErrorKind::usage, std::string(set) + "=" + *reader.text(set) + " is set without " +
                                        (has_rank ? launcher.world_size : launcher.rank) +
                                        ": set both (a launcher does) or neither");
    }
  }
  return nullptr;
}

void check_below(const char* small_name, int small, const char* large_name, int large) {
  if (small < large) return;
  throw Error(ErrorKind::usage, std::string(small_name) + "=" + std::to_string(small) + " must be below " + large_name +
                                    "=" + std::to_string(large));
}

void read_places(const Reader& reader, const Launcher& launcher, World& world) {
  world.world_size = *reader.integer(launcher.world_size, 1, INT_MAX);
  world.rank = *reader.integer(launcher.rank, 0, INT_MAX);
  check_below(launcher.rank, world.rank, launcher.world_size, world.world_size);
  // Slurm's count is an upper limit: --ntasks 2 --ntasks-per-node 8 is allowed.
  const int local_size = reader.integer(launcher.local_world_size, 1, INT_MAX).value_or(world.world_size);
  world.local_world_size = std::min(local_size, world.world_size);
  world.local_rank = reader.integer(launcher.local_rank, 0, INT_MAX).value_or(world.rank);
  check_below(launcher.local_rank, world.local_rank, launcher.local_world_size, world.local_world_size);
  world.node_rank = reader.integer(launcher.node_rank, 0, INT_MAX).value_or(0);
}

void read_master(const Reader& reader, World& world) {
  world.master_port = reader.integer("MASTER_PORT", 1, 65535).value_or(world.master_port);
  if (const auto address = reader.text("MASTER_ADDR")) {
    if (address->empty()) throw Error(ErrorKind::usage, "MASTER_ADDR is empty: set it to the host of rank 0");
    world.master_addr = *address;
  } else if (world.world_size != world.local_world_size) {
    const auto nodes = reader.text("SLURM_JOB_NODELIST");
    if (!nodes) {
      throw Error(ErrorKind::usage, "MASTER_ADDR is not set, but only " + std::to_string(world.local_world_size) +
                                        " of " + std::to_string(world.world_size) +
                                        " ranks are on this node: set it to the host of rank 0");
    }
    world.master_addr = first_slurm_host(*nodes);
  }
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

World world_from_environment(const Environment& environment) {
  const Reader reader(environment);
  World world;
  world.error_file = reader.text("TORCHELASTIC_ERROR_FILE");
  const Launcher* launcher = find_launcher(reader);
  if (launcher == nullptr) return world;
  world.launched = true;
  read_places(reader, *launcher, world);
  read_master(reader, world);
  world.restart_count = reader.integer("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX).value_or(0);
  world.agent_store = reader.flag("TORCHELASTIC_USE_AGENT_STORE");
  if (world.rank == 0) world.listen_fd = reader.integer("ASSAY_LISTEN_FD", 3, INT_MAX);
  return world;
}

std::string first_slurm_host(const std::string& node_list) {
  const auto bracket = node_list.find('[');
  const auto comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return node_list.substr(0, comma);
  const auto number_end = node_list.find_first_of("-,]", bracket);
  const auto close = node_list.find(']', bracket);
  if (close == std::string::npos)
    throw Error(ErrorKind::usage, "SLURM_JOB_NODELIST=" + node_list + " has no closing ]");
  const std::string suffix = node_list.substr(close + 1, node_list.find(',', close) - close - 1);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, number_end - bracket - 1) + suffix;
}

}  // namespace assay
