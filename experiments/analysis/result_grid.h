// The grid of a site's heads as results are written: [layer, head] in original indices, NaN where a
// layer has no such head or it is not alive.
#pragma once

#include "experiments/logs/result_arrays.h"
#include "experiments/models/model.h"

namespace headlab {

// The layers of a model's site in order of depth; they are looked at, not kept.
std::vector<const AttentionHeads*> layers_of(Model& model, const std::string& site);

// The heads that are alive, as rows among those that the layer has (head_ids()).
std::vector<int64_t> alive_rows(const AttentionHeads& layer);

class ResultGrid {
 public:
  explicit ResultGrid(const std::vector<const AttentionHeads*>& layers);

  int64_t layers() const { return layers_; }
  int64_t heads() const { return heads_; }  // of the layer with most
  std::vector<ResultAxis> axes() const;     // layer, head, layer2, head2

  // Float64 values of each layer's alive heads, in order; undefined for a layer without any values.
  // [h] -> [L,H].
  Tensor by_head(const std::vector<Tensor>& values) const;
  // [h,n], n may differ -> [L,H,n of the widest].
  Tensor rows_by_head(const std::vector<Tensor>& values) const;
  // [h,h] -> [L,H,H].
  Tensor within_layers(const std::vector<Tensor>& values) const;
  // [N,N] of all alive heads, layer behind layer -> [L,H,L,H].
  Tensor between_layers(const Tensor& values) const;

 private:
  int64_t layers_, heads_ = 0;
  std::vector<int64_t> alive_;  // heads of each layer
  Tensor places_;               // [N] in the flat grid
};

std::vector<double> numbers(const Tensor& t);  // its elements, row-major
// An array of float64 values under the names of its dimensions.
ResultArray result_array(const LogVariable& about, const std::vector<std::string>& dims,
                         const Tensor& values);

}  // namespace headlab
