// Copies the weights of published files into a model.
#pragma once

#include "experiments/pretrained/hugging_face_families.h"

namespace headlab {

// [n,...] of all parts, one below the other; of a matrix that lies on its side [in,n].
std::vector<int64_t> shape_meant(const ForeignTensor& rule, const NamedTensors& ours);

// In place: row 2i of each head to row i, row 2i + 1 to row i + d/2. Rope of halves then turns the
// same pairs that one of neighbours did.
void sort_pairs(const Tensor& rows, int64_t head_dim);

// Fills the parameters and buffers that the rules name, and takes the file's own names and shapes
// over into them. DataError with all tensors that are missing, not known, of another shape than
// config.json means, or unlike the tensor that they are tied to. `interleaved`: features of heads
// that rotate together lie side by side in the file, not half a head apart. Returns a sentence on
// each part of the file that is left out.
std::vector<std::string> take_weights(const WeightFiles& files, const HuggingFaceFamily& family,
                                      const std::vector<TiedNames>& tied,
                                      std::vector<ForeignTensor>& rules, const NamedTensors& ours,
                                      std::optional<int64_t> interleaved_head_dim);

}  // namespace headlab
