// Weights of a run of several ranks: those of rank 0, and the same on all.
#pragma once

#include <optional>

#include "experiments/models/model.h"
#include "experiments/ranks/comm.h"
#include "experiments/runs/checkpoint.h"

namespace headlab {

// Gives all ranks the tensors of rank 0's model: machines may draw others from the same seed.
void share_weights(Model& model, Comm& comm);

// The checkpoint that rank 0 has read, on all ranks; only its own counts.
std::optional<Checkpoint> share_checkpoint(std::optional<Checkpoint> checkpoint, Comm& comm);

// std::runtime_error on all ranks where the bits of one's tensors are others.
void require_same_weights(const Model& model, Comm& comm);

}  // namespace headlab
