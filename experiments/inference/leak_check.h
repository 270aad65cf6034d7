// Before a model is trained: what its masks hide must not reach what its attention puts out. The
// laws of tests/core/test_laws.cpp in small, on the layers that are there, each with its own mask.
#pragma once

#include "experiments/data/batch.h"
#include "experiments/models/model.h"

namespace headlab {

// In eval mode, on examples of drawn tokens as long as the data's, 512 at most, with and without
// padding. Every attention layer, on drawn hidden states: where the state of one key changes (of a
// later one, a padded one, one outside the window), the rows that it is hidden from must stay as
// they are. The whole model, where it is causal and means to be: no logits but the last move with
// the last token. A window that holds the whole sequence is narrowed to half of it.
//
// LeakError says which kind, layer and position leaked, and by how much. Weights, buffers,
// gradients, modes and the state of the random generators are afterwards what they were.
//
// `options`: of this model, for the names of its kinds. `data`: of DataSource::shape().
void check_leaks(Model& model, const ModelOptions& options, const DataShape& data,
                 const Compute& compute);

}  // namespace headlab
