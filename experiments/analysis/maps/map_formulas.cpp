#include "experiments/analysis/maps/map_formulas.h"

#include <algorithm>

#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr uint8_t kSepClass = 2;

RowValues sep_mass(const ExampleMap& e, bool from_sep) {
  const auto sep = e.classes_of_rows() == kSepClass;
  return {(e.rows.a * e.key_is(kSepClass)).sum(-1),
          e.rows.counted & (from_sep ? sep : sep.logical_not())};
}

RowValues sep_from_sep(const ExampleMap& e) { return sep_mass(e, true); }
RowValues sep_from_rest(const ExampleMap& e) { return sep_mass(e, false); }

RowValues sparsity(const ExampleMap& e) {
  const auto& a = e.rows.a;
  const auto small = (a < 0.01 * a.amax(-1, true)) & e.rows.allowed;
  return {small.sum(-1) / e.rows.keys, e.rows.counted};
}

// With the weights from the largest on, the k-th smallest of n is the (n-k+1)-th.
RowValues gini(const ExampleMap& e) {
  const auto falling = std::get<0>(e.rows.a.sort(-1, /*descending=*/true));
  const auto rank = at::arange(falling.size(-1), at::kDouble) + 0.5;
  const auto share = (falling * rank).sum(-1) / (falling.sum(-1) * e.rows.keys);
  return {1 - 2 * share, e.rows.counted};
}

RowValues top_k_mass(const ExampleMap& e) {
  const int64_t k = std::min(e.options.top_k, e.rows.a.size(-1));
  return {std::get<0>(e.rows.a.topk(k, -1)).sum(-1), e.rows.counted};
}

RowValues rare_token(const ExampleMap& e) {
  const auto ranks = e.context().frequency_rank[0];  // [S]
  const auto rarest = std::get<1>(ranks.sort(/*stable=*/true, -1, /*descending=*/true));
  if (ranks[rarest[0]].item<int64_t>() < e.options.rarest_rank)
    return {at::zeros_like(e.rows.keys), at::zeros_like(e.rows.counted)};
  auto candidates = e.rows.allowed;
  if (e.context().classes.defined()) candidates = candidates & e.key_is(kSepClass).logical_not();
  const auto heaviest = e.rows.a.masked_fill(candidates.logical_not(), -1).argmax(-1);
  const auto hit = at::isin(heaviest, rarest.narrow(0, 0, std::min<int64_t>(2, ranks.size(0))));
  return {hit.to(at::kDouble), e.rows.counted & candidates.any(-1)};
}

// sigma_k [1,n,min(T,S)]; and that an example counts where any of its rows does: [1,n].
RowValues of_spectrum(const ExampleMap& e, Tensor (*value)(const Tensor& sigma)) {
  const auto sigma = of_finite(e.rows.a, [](const Tensor& a) { return at::linalg_svdvals(a); });
  return {value(sigma), e.rows.counted.any(-1)};
}
RowValues effective_rank(const ExampleMap& e) {
  return of_spectrum(e, [](const Tensor& sigma) {
    const auto p = sigma / sigma.sum(-1, true);
    return at::xlogy(p, p).sum(-1).neg().exp();
  });
}
RowValues stable_rank(const ExampleMap& e) {
  return of_spectrum(
      e, [](const Tensor& sigma) { return sigma.square().sum(-1) / sigma.select(-1, 0).square(); });
}

RowValues grid_distance(const ExampleMap& e) {
  const auto& grid = *e.context().grid;
  const int64_t cls = grid.cls_tokens, T = e.rows.a.size(2), patches = T - cls;
  TORCH_CHECK(e.rows.a.size(3) == T && patches >= 0 && patches <= grid.rows * grid.columns,
              "grid_distance: a map ", e.rows.a.sizes(), " of ", grid.rows, " x ", grid.columns,
              " patches and ", cls, " more tokens");
  const auto place = at::arange(patches, at::kLong);
  const auto row = place.floor_divide(grid.columns), column = place.remainder(grid.columns);
  const auto squared = [](const Tensor& x) {
    return (x.unsqueeze(1) - x).to(at::kDouble).square();
  };
  const auto distance = (squared(row) + squared(column)).sqrt() * grid.patch;  // [patches,patches]
  const auto among = e.rows.a.narrow(2, cls, patches).narrow(3, cls, patches);
  return {(among * distance).sum(-1), e.rows.counted.narrow(2, cls, patches)};
}

// What a statistic of one head needs beside the map.
bool has_own_classes(const MapContext& f) { return f.classes.defined() && !f.cross; }
bool has_ranks(const MapContext& f) { return f.frequency_rank.defined(); }
bool has_grid(const MapContext& f) { return f.grid.has_value() && !f.cross; }

MapStatistic of_head(Statistic statistic, RowValues (*values)(const ExampleMap&),
                     bool (*needs_context)(const MapContext&) = nullptr) {
  statistic.always = false;
  return {statistic, MapDims::kHead, values, needs_context};
}
MapStatistic of_pairs(MapDims dims, Statistic statistic) {
  statistic.always = false, statistic.per = Per::kPair;
  return {statistic, dims};
}

}  // namespace

const std::vector<MapStatistic>& map_statistic_table() {
  static const std::vector<MapStatistic> table{
      of_head({.name = "sep_from_sep",
               .long_name = "weight of separators on separators",
               .formula = "mean over rows of class sep of the sum of a over keys of class sep",
               .needs_places = true},
              sep_from_sep, has_own_classes),
      of_head(
          {.name = "sep_from_rest",
           .long_name = "weight of other tokens on separators",
           .formula = "mean over rows of any other class of the sum of a over keys of class sep",
           .needs_places = true},
          sep_from_rest, has_own_classes),
      of_head({.name = "sparsity_h2o",
               .long_name = "share of keys with next to no weight",
               .formula = "mean over rows of the share of the n_i allowed keys with a < 0.01 max_j "
                          "a"},
              sparsity),
      of_head(
          {.name = "gini",
           .long_name = "inequality of the weights",
           .formula = "mean over rows of 1 - 2 sum_k c_(k)/sum(c) (n-k+1/2)/n, c ascending over "
                      "the allowed keys; uniform 0, one-hot 1-1/n"},
          gini),
      of_head({.name = "top_k_mass",
               .long_name = "weight on the heaviest keys",
               .formula = "mean over rows of the sum of the k largest a; all where there are "
                          "fewer"},
              top_k_mass),
      of_head({.name = "rare_token",
               .long_name = "share of rows that attend to a rarest token",
               .formula = "share of rows whose argmax_j a, separators excluded, is one of the two "
                          "rarest tokens of the sequence; sequences whose rarest token has "
                          "frequency rank >= 500"},
              rare_token, has_ranks),
      of_head({.name = "effective_rank",
               .long_name = "effective rank of the map",
               .formula = "exp(-sum p ln p), p = sigma/sum(sigma), sigma the singular values of an "
                          "example's map; mean over examples"},
              effective_rank),
      of_head({.name = "stable_rank",
               .long_name = "stable rank of the map",
               .formula = "norm_F^2/sigma_1^2 of an example's map; mean over examples"},
              stable_rank),
      of_head({.name = "grid_distance",
               .units = "pixel",
               .long_name = "mean distance within the image",
               .formula = "mean over patches of sum_j a P norm2((r_i,c_i)-(r_j,c_j)), P the patch "
                          "side; cls left out, weights not renormalised",
               .needs_places = true},
              grid_distance, has_grid),
      of_pairs(MapDims::kHeadsOfLayer, {.name = "attention_overlap",
                                        .long_name = "overlap of the weights of two heads",
                                        .formula = "mean over rows of sum_j p_h p_g"}),
      of_pairs(MapDims::kAllHeads,
               {.name = "js",
                .units = "nat",
                .long_name = "Jensen-Shannon divergence between heads",
                .formula = "mean over rows of KL(p||m)/2 + KL(q||m)/2, m = (p+q)/2"}),
      of_pairs(MapDims::kAllHeads,
               {.name = "js_clark",
                .units = "nat",
                .long_name = "Jensen-Shannon divergence between heads as Clark et al. 2019 sum it",
                .formula = "sum over rows and examples of the divergence of 0.999 p + 0.001/n, n "
                           "the length"})};
  return table;
}

}  // namespace headlab
