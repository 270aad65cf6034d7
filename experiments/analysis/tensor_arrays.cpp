#include "experiments/analysis/tensor_arrays.h"

#include "core/torch.h"

namespace headlab {

std::vector<double> numbers(const Tensor& t) {
  const auto dense = t.to(at::kCPU, at::kDouble).contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

LabelledArray result_array(const LogVariable& about, const std::vector<std::string>& dims,
                         const Tensor& values) {
  return {about, dims, numbers(values)};
}

std::vector<LabelledAxis> head_axes(const SiteHeads& heads) {
  LabelledGroup group;
  add_head_axes(group, {"layer", "head", "layer2", "head2"}, heads.layers(), heads.heads());
  return group.axes;
}

}  // namespace headlab
