// Which process of a run this is, by the variables of who started it: torchrun, srun or a loop in a
// shell. No torch in here.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace headlab {

struct Launch {
  int rank = 0, size = 1;
  int local_rank = 0;  // among the processes of this host
  bool meets = false;  // has others to meet, or was started as one that would
  std::string address = {};
  int port = 0;
  bool served = false;  // another process than rank 0 serves the store: torchrun's agent
  int restarts = 0;     // of the whole group so far, by torchrun

  // Keys in the store, which outlives a restart where torchrun's agent serves it.
  std::string prefix() const;
};

using Variable = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

// By default this process is the whole run. torchrun and a loop set RANK, WORLD_SIZE, MASTER_ADDR
// and MASTER_PORT; srun sets SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID of a step, beside
// which the script exports MASTER_ADDR and MASTER_PORT. ConfigError where some of them are missing
// or no numbers.
Launch launched(const Variable& variable = environment_variable);

int free_port();  // of this host, for the store of processes that are started on it

// The address of this host's interface that reaches the store; DeviceError where none does.
std::string address_towards(const Launch& launch);

}  // namespace headlab
