// Tensors as the labelled arrays of a file of results.
#pragma once

#include "experiments/logs/result_arrays.h"
#include "experiments/models/site_heads.h"

namespace headlab {

std::vector<double> numbers(const Tensor& t);  // its elements, row-major
// Adds an array with these dimensions.
LabelledArray& add_array(LabelledGroup& to, LogVariable about, std::vector<std::string> dims,
                         const Tensor& values);
const LabelledArray* find_array(const LabelledGroup& group, const std::string& name);  // or null
// Adds the axes and arrays that the group does not have yet.
void merge(LabelledGroup& to, LabelledGroup more);
std::vector<LabelledAxis> head_axes(const SiteHeads& heads);  // layer, head, layer2, head2

}  // namespace headlab
