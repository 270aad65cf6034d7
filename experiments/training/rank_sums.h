// Statistics of heads that several ranks have counted, added as one process would add them.
#pragma once

#include <string>
#include <vector>

#include "experiments/models/site_probes.h"
#include "experiments/ranks/comm.h"

namespace headlab {

struct MicroBatches;

// Adds to the probes of rank 0 what the micro-batches of an update gave, in their order; `own`:
// those of this rank. By all ranks.
void add_sums_of_all(SiteProbes& probes, std::vector<ProbeSums> own, const MicroBatches& of,
                     Comm& comm);

// As bytes, and back. The numbers of one process, whose layers are those of the other.
std::string packed_sums(const std::vector<ProbeSums>& sums);
std::vector<ProbeSums> unpacked_sums(const std::string& bytes);

}  // namespace headlab
