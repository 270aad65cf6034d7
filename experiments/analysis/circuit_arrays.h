// What a model's weights say of its heads (experiments/analysis/circuits.h), as results.
#pragma once

#include "experiments/analysis/tensor_arrays.h"

namespace headlab {

// Of the layers of one site: qk_singular_values (layer, head, component), qk_rank_95 (layer, head),
// qk_layer_singular_values (layer, layer_component), qk_layer_rank_95 (layer), ov_copying (layer,
// head), composition_q, _k, _v (layer, head, layer2, head2); with embedding and unembedding [V,D]
// (Model) also ov_copying_full. NaN in layers whose kind has no such matrices (linformer); without
// any layer that has them there are no arrays. The path is the caller's to name.
LabelledGroup circuits(const SiteHeads& heads, const Tensor& embedding = {},
                       const Tensor& unembedding = {});

}  // namespace headlab
