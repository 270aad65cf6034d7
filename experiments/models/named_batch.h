// The inputs of a whole model by the names that files of expected numbers give them.
#pragma once

#include "experiments/data/batch.h"
#include "experiments/models/model.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

// Of what reads a text in.ids [B,T], maybe in.mask (ones, then zeros) and in.token_types; of a vit
// in.pixels [B,C,h,w]; of what translates in.source_ids [B,S], maybe in.source_mask and
// in.decoder_ids [B,T]; of any maybe in.targets. `file` is what messages call it: DataError for
// what is missing, of another shape or type, or beyond the vocabulary or the context.
Batch named_batch(const std::string& file, const NamedTensors& tensors, const DataShape& shape);
std::vector<std::string> batch_names(const DataShape& shape);

}  // namespace headlab
