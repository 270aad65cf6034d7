#include "experiments/analysis/result_grid.h"

#include <algorithm>

#include "core/torch.h"

namespace headlab {
namespace {

Tensor nans(at::IntArrayRef sizes) { return at::full(sizes, kNaN, at::kDouble); }

}  // namespace

std::vector<const AttentionHeads*> layers_of(Model& model, const std::string& site) {
  const auto sites = model.sites();
  std::vector<const AttentionHeads*> layers;
  for (const auto* layer : sites.at(site)) layers.push_back(layer->get());
  return layers;
}

std::vector<int64_t> alive_rows(const AttentionHeads& layer) {
  const auto ids = layer.head_ids();
  const auto is_alive = layer.alive();
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < std::ssize(ids); ++row)
    if (is_alive[ids[row]]) rows.push_back(row);
  return rows;
}

ResultGrid::ResultGrid(const std::vector<const AttentionHeads*>& layers)
    : layers_(std::ssize(layers)) {
  for (const auto* layer : layers) heads_ = std::max(heads_, layer->heads());
  std::vector<int64_t> places;
  for (int64_t l = 0; l < layers_; ++l) {
    const auto ids = layers[l]->head_ids();
    const auto rows = alive_rows(*layers[l]);
    alive_.push_back(std::ssize(rows));
    for (int64_t row : rows) places.push_back(l * heads_ + ids[row]);
  }
  places_ = at::tensor(places, at::kLong);
}

std::vector<ResultAxis> ResultGrid::axes() const {
  ResultGroup group;
  add_head_axes(group, {"layer", "head", "layer2", "head2"}, layers_, heads_);
  return group.axes;
}

Tensor ResultGrid::by_head(const std::vector<Tensor>& values) const {
  std::vector<Tensor> columns;
  for (const auto& v : values) columns.push_back(v.defined() ? v.unsqueeze(1) : v);
  return rows_by_head(columns).squeeze(2);
}

Tensor ResultGrid::rows_by_head(const std::vector<Tensor>& values) const {
  int64_t width = 1;
  for (const auto& v : values)
    if (v.defined()) width = std::max(width, v.size(1));
  auto all = nans({places_.size(0), width});
  int64_t first = 0;
  for (int64_t l = 0; l < layers_; first += alive_[l++])
    if (values[l].defined())
      all.narrow(0, first, alive_[l]).narrow(1, 0, values[l].size(1)).copy_(values[l]);
  return nans({layers_ * heads_, width}).index_copy(0, places_, all).view({layers_, heads_, width});
}

Tensor ResultGrid::within_layers(const std::vector<Tensor>& values) const {
  auto all = nans({places_.size(0), places_.size(0)});
  int64_t first = 0;
  for (int64_t l = 0; l < layers_; first += alive_[l++])
    if (values[l].defined())
      all.narrow(0, first, alive_[l]).narrow(1, first, alive_[l]).copy_(values[l]);
  return between_layers(all).diagonal(0, 0, 2).permute({2, 0, 1});
}

Tensor ResultGrid::between_layers(const Tensor& values) const {
  const int64_t n = layers_ * heads_;
  const auto rows = nans({n, places_.size(0)}).index_copy(0, places_, values);
  return nans({n, n}).index_copy(1, places_, rows).view({layers_, heads_, layers_, heads_});
}

std::vector<double> numbers(const Tensor& t) {
  const auto dense = t.to(at::kCPU, at::kDouble).contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

ResultArray result_array(const LogVariable& about, const std::vector<std::string>& dims,
                         const Tensor& values) {
  return {about, dims, numbers(values)};
}

}  // namespace headlab
