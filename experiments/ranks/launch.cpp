#include "experiments/ranks/launch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <memory>

#include "core/config/config.h"
#include "core/errors.h"

namespace headlab {
namespace {

// A number of the environment; ConfigError where it is missing, none, or outside of its bounds.
int number_in(const Variable& variable, const char* name, int least, int most) {
  const auto text = variable(name);
  if (!text)
    throw ConfigError(fmt::format(
        "{} is not set, and other variables of a run on several processes are: set all of them, as "
        "torchrun does, or none",
        name));
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < least || number > most)
    throw ConfigError(fmt::format("{}={}: is no number from {} to {}", name, *text, least, most));
  return number;
}

// The address that a socket has that would send there: a datagram socket connects without sending.
std::string address_towards(const addrinfo& there) {
  const int descriptor = ::socket(there.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return "";
  sockaddr_storage here = {};
  socklen_t size = sizeof(here);
  auto* address = reinterpret_cast<sockaddr*>(&here);
  char text[NI_MAXHOST] = "";
  const bool found =
      ::connect(descriptor, there.ai_addr, there.ai_addrlen) == 0 &&
      ::getsockname(descriptor, address, &size) == 0 &&
      ::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
  ::close(descriptor);
  return found ? text : "";
}

}  // namespace

std::string Launch::prefix() const { return fmt::format("headlab/{}", restarts); }

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

Launch launched(const Variable& variable) {
  constexpr int kMostRanks = 1 << 16, kMostPort = 65535;
  const bool by_torchrun = variable("RANK") || variable("WORLD_SIZE");
  // A batch script has SLURM_PROCID, too, and SLURM_NTASKS of the whole job: only a step has its
  // id.
  const bool by_srun = variable("SLURM_STEP_ID") && variable("MASTER_ADDR") &&
                       number_in(variable, "SLURM_STEP_NUM_TASKS", 1, kMostRanks) > 1;
  if (!by_torchrun && !by_srun) return {};
  Launch launch;
  launch.meets = true;
  launch.size =
      number_in(variable, by_torchrun ? "WORLD_SIZE" : "SLURM_STEP_NUM_TASKS", 1, kMostRanks);
  launch.rank = number_in(variable, by_torchrun ? "RANK" : "SLURM_PROCID", 0, launch.size - 1);
  const char* local = by_torchrun ? "LOCAL_RANK" : "SLURM_LOCALID";
  launch.local_rank = variable(local) ? number_in(variable, local, 0, kMostRanks) : launch.rank;
  launch.port = number_in(variable, "MASTER_PORT", 1, kMostPort);
  launch.address = variable("MASTER_ADDR").value_or("");
  if (launch.address.empty())
    throw ConfigError("MASTER_ADDR is not set: it names the host of rank 0");
  launch.served = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variable("TORCHELASTIC_RESTART_COUNT"))
    launch.restarts = number_in(variable, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 20);
  return launch;
}

int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in here = {};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(here);
  auto* address = reinterpret_cast<sockaddr*>(&here);
  const bool bound = descriptor >= 0 && ::bind(descriptor, address, size) == 0 &&
                     ::getsockname(descriptor, address, &size) == 0;
  if (descriptor >= 0) ::close(descriptor);
  if (!bound) throw DeviceError("no port is free on this host");
  return ::ntohs(here.sin_port);
}

std::string address_towards(const Launch& launch) {
  addrinfo* all = nullptr;
  const auto port = std::to_string(launch.port);
  if (const int error = ::getaddrinfo(launch.address.c_str(), port.c_str(), nullptr, &all))
    throw DeviceError(fmt::format("MASTER_ADDR={}: {}", launch.address, ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(all, ::freeaddrinfo);
  for (const auto* there = all; there; there = there->ai_next)
    if (const auto here = address_towards(*there); !here.empty()) return here;
  throw DeviceError(
      fmt::format("MASTER_ADDR={}: no interface of this host reaches it", launch.address));
}

}  // namespace headlab
