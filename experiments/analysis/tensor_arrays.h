// Tensors as the labelled arrays of a file of results.
#pragma once

#include "experiments/logs/result_arrays.h"
#include "experiments/models/site_heads.h"

namespace headlab {

std::vector<double> numbers(const Tensor& t);  // its elements, row-major
// An array of float64 values under the names of its dimensions.
LabelledArray result_array(const LogVariable& about, const std::vector<std::string>& dims,
                         const Tensor& values);
std::vector<LabelledAxis> head_axes(const SiteHeads& heads);  // layer, head, layer2, head2

}  // namespace headlab
