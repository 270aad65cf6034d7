#include "experiments/analysis/tensor_arrays.h"

#include <algorithm>

#include "core/torch.h"

namespace headlab {

std::vector<double> numbers(const Tensor& t) {
  const auto dense = t.to(at::kCPU, at::kDouble).contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

LabelledArray& add_array(LabelledGroup& to, LogVariable about, std::vector<std::string> dims,
                         const Tensor& values) {
  to.arrays.push_back({std::move(about), std::move(dims), numbers(values)});
  return to.arrays.back();
}

const LabelledArray* find_array(const LabelledGroup& group, const std::string& name) {
  const auto found = std::ranges::find(group.arrays, name,
                                       [](const LabelledArray& array) { return array.about.name; });
  return found == group.arrays.end() ? nullptr : &*found;
}

void merge(LabelledGroup& to, LabelledGroup more) {
  for (auto& axis : more.axes) add_axis(to, std::move(axis));
  for (auto& array : more.arrays)
    if (!find_array(to, array.about.name)) to.arrays.push_back(std::move(array));
}

std::vector<LabelledAxis> head_axes(const SiteHeads& heads) {
  LabelledGroup group;
  add_head_axes(group, {"layer", "head", "layer2", "head2"}, heads.layers(), heads.heads());
  return group.axes;
}

}  // namespace headlab
