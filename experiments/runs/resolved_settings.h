// Experiments that say the same in other words.
#pragma once

#include "experiments/runs/experiment.h"

namespace headlab {

// The same experiment in one wording: without options that say what would follow anyway
// (model.d_ff: 512 of a d_model of 128), shares as counts, lists and ranges of layers in their
// shortest form. Experiments with the same resolved settings have the same write_block() then, but
// for their paths.
Experiment resolved(Experiment experiment);

}  // namespace headlab
