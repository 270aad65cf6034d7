// One pass of a model with every intermediate named, as files of expected numbers name them.
#pragma once

#include "experiments/models/model.h"
#include "experiments/models/named_tensors.h"

namespace headlab {

struct Intermediates {
  ModelOutput output;
  // out.logits, or out.embedding [B,D] of a model that only embeds; of each stack out.hidden.l (0:
  // into the first block), out.final where a norm stands behind the last; of each site
  // out.attention.l [B,H,T,S]. Of models with several stacks out.NAME.…, of their cross-attention
  // out.cross.attention.l.
  NamedTensors tensors;
};
// With gradients where these are on.
Intermediates intermediates(Model& model, const Batch& batch, Backend backend = Backend::kAuto);

}  // namespace headlab
