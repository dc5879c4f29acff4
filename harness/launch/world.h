#pragma once

#include <functional>
#include <optional>
#include <string>

namespace assay {

/// The place of this process in its job, torchrun's names.
struct World {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  int restart_count = 0;                  ///< TORCHELASTIC_RESTART_COUNT
  bool agent_store = false;               ///< the launcher hosts the store: every rank connects as a client
  std::optional<int> listen_fd;           ///< rank 0: the open listening socket of master_port
  std::optional<std::string> error_file;  ///< TORCHELASTIC_ERROR_FILE: where error.json goes
  bool launched = false;                  ///< a launcher was found; false: a process on its own
};

/// Looks a variable up; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The environment of this process.
std::optional<std::string> process_environment(const std::string& name);

/// Looks for torchrun, Open MPI, PMIx or PMI, MVAPICH and Slurm in that order; the first one found decides.
/// Without a local rank all ranks are taken to be on one node. Throws Error{usage} that names variable and value.
World world_from_environment(const Environment& environment = process_environment);

/// First host of Slurm's list form: "node[03-04,07],other" is "node03".
std::string first_slurm_host(const std::string& node_list);

}  // namespace assay
