#include "experiments/commands/on_ranks.h"

#include "experiments/commands/failure.h"

namespace headlab {

int on_ranks(const Launch& launch, const CommSettings& settings,
             const std::function<int(const Ranks&)>& work) {
  if (!launch.meets) return work({launch, alone()});
  const auto comm = make_comm(launch, settings);
  try {
    return work({launch, *comm});
  } catch (const LostRank&) {
    throw;
  } catch (...) {
    const auto failure = current_failure();
    comm->leave(failure.code, failure.what);
    throw;
  }
}

}  // namespace headlab
