#include "experiments/analysis/maps/multidimensional_scaling.h"

#include <cmath>
#include <limits>

#include "core/torch.h"
#include "experiments/analysis/maps/single_threaded.h"

namespace headlab {
namespace {

using at::Tensor;

// Points [n,dims] of items that all exist.
Tensor place(const Tensor& d, int64_t dims, ScaledPoints& result) {
  const int64_t n = d.size(0);
  auto inner = d.square();
  inner = -0.5 * (inner - inner.mean(0, true) - inner.mean(1, true) + inner.mean());  // [n,n]
  const auto [values, vectors] = at::linalg_eigh(inner);                              // rising
  auto points = at::zeros({n, dims}, at::kDouble);
  const double whole = values.clamp_min(0).sum().item<double>();
  // Below this an eigenvalue is rounding.
  const double least = whole * static_cast<double>(n) * std::numeric_limits<double>::epsilon();
  for (int64_t c = 0; c < dims; ++c) {
    const double value = c < n ? values[n - 1 - c].item<double>() : 0;
    result.eigenvalues.push_back(value > least ? value : 0);
    if (!(value > least)) continue;
    const auto axis = vectors.select(1, n - 1 - c);
    const double largest = axis[axis.abs().argmax()].item<double>();
    points.select(1, c).copy_(axis * (std::sqrt(value) * (largest < 0 ? -1 : 1)));
    result.share += value / whole;
  }
  return points;
}

// The items that scale_points() does not leave out.
Tensor complete_items(const Tensor& d) {
  auto items = d.diagonal().isfinite().nonzero().squeeze(1);
  while (items.size(0) > 0) {
    const auto missing =
        d.index_select(0, items).index_select(1, items).isfinite().logical_not().sum(1);
    const int64_t most = missing.max().item<int64_t>();
    if (most == 0) break;
    const auto worst = (missing == most).nonzero().max();
    items = items.masked_select(at::arange(items.size(0)) != worst);
  }
  return items;
}

}  // namespace

ScaledPoints scale_points(const Tensor& dissimilarity, int64_t dims) {
  TORCH_CHECK(dissimilarity.dim() == 2 && dissimilarity.size(0) == dissimilarity.size(1),
              "dissimilarities must be [N,N], are ", dissimilarity.sizes());
  const auto d = dissimilarity.to(at::kDouble);
  ScaledPoints result;
  result.points =
      at::full({d.size(0), dims}, std::numeric_limits<double>::quiet_NaN(), d.options());
  for_each_single_threaded(1, [&](int64_t) {
    at::NoGradGuard no_grad;
    const auto exist = complete_items(d);
    if (exist.size(0) == 0) return;
    const auto among = d.index_select(0, exist).index_select(1, exist);
    result.points.index_copy_(0, exist, place(among, dims, result));
  });
  return result;
}

}  // namespace headlab
