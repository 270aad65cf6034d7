#include "experiments/analysis/output_statistics.h"

#include <algorithm>
#include <limits>

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

// sum += a^T b, a [R,m], b [R,n] -> [m,n]; an undefined sum is 0. A few rows at a time, so that the
// order of a long sum is ours, not what a BLAS makes of the number of threads.
void add_product(Tensor& sum, const Tensor& a, const Tensor& b) {
  constexpr int64_t kRows = 256;
  if (!sum.defined()) sum = at::zeros({a.size(1), b.size(1)}, at::kDouble);
  for (int64_t row = 0; row < a.size(0); row += kRows) {
    const int64_t n = std::min(kRows, a.size(0) - row);
    sum.addmm_(a.narrow(0, row, n).t(), b.narrow(0, row, n));
  }
}

// The same of each head h with itself, over the rows of each column g of `counted`: x [R,H,e],
// counted [R,G] -> [G,H,e,e].
void add_squares(Tensor& sum, const Tensor& x, const Tensor& counted) {
  const int64_t H = x.size(1), e = x.size(2), G = counted.size(1);
  if (!sum.defined()) sum = at::zeros({G, H, e, e}, at::kDouble);
  for (int64_t g = 0; g < G; ++g) {
    const auto seen = x * counted.narrow(1, g, 1).unsqueeze(2);  // [R,H,e]
    for (int64_t h = 0; h < H; ++h) {
      auto own = sum[g][h];
      add_product(own, seen.select(1, h), x.select(1, h));
    }
  }
}

Tensor in_float64(const Tensor& t) { return t.detach().to(at::kCPU, at::kDouble); }

// W_O^h v_j: v [B,H,S,e], weight [D,H*e] -> [B,H,S,D].
Tensor transformed_values(const Tensor& v, const Tensor& weight) {
  const auto of_heads = weight.view({weight.size(0), v.size(1), v.size(3)}).permute({1, 2, 0});
  return at::matmul(v, of_heads);  // [H,e,D] in turn
}

}  // namespace

Tensor norm_map(const Tensor& a, const Tensor& v, const Tensor& weight) {
  return a * transformed_values(v, weight).norm(2, -1).unsqueeze(2);  // [B,H,T,S]
}

Tensor summed_norm_map(const Tensor& a, const Tensor& v, const Tensor& weight) {
  const auto f = transformed_values(v, weight);  // [B,H,S,D]
  std::vector<Tensor> rows;                      // a query at a time: [B,S,D] instead of [B,T,S,D]
  for (int64_t i = 0; i < a.size(2); ++i)
    rows.push_back((a.select(2, i).unsqueeze(-1) * f).sum(1).norm(2, -1));  // [B,S]
  return rows.empty() ? a.sum(1) : at::stack(rows, 1);                      // [B,T,S]
}

void OutputSums::add(const std::vector<LayerOutputs>& layers, const Tensor& length) {
  at::NoGradGuard no_grad;
  TORCH_CHECK(layers_.empty() || layers_.size() == layers.size(), "a batch of ", layers.size(),
              " layers behind one of ", layers_.size());
  layers_.resize(layers.size());
  std::vector<Rows> centred;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const auto& outputs = layers[layer];
    auto& sums = layers_[layer];
    const int64_t B = outputs.o.size(0), H = outputs.o.size(1), T = outputs.o.size(2),
                  e = outputs.o.size(3);
    TORCH_CHECK(!sums.origin.defined() || sums.origin.sizes() == at::IntArrayRef({H, e}), "layer ",
                layer, " has outputs [", H, ",", e, "], had ", sums.origin.sizes(), " before");
    auto valid = within_length(length, T, at::kCPU);  // [B,T]
    if (!valid.defined()) valid = at::ones({B, T}, at::kBool);
    auto rows = rows_of(outputs, valid);
    add_layer(sums, rows, outputs.weight.defined() ? in_float64(outputs.weight) : Tensor());
    if (outputs.hidden.defined()) add_hidden(sums, in_float64(outputs.hidden), valid);
    if (!sums.origin.defined())
      sums.origin = rows.o.size(0) > 0 ? rows.o.mean(0) : rows.o.new_zeros({H, e});
    rows.o = (rows.o - sums.origin) * rows.counted.unsqueeze(2);
    centred.push_back(std::move(rows));
  }
  if (!options_.likeness) return;
  const size_t L = layers.size();
  pairs_.resize(L * (L + 1) / 2);
  auto pair = pairs_.begin();
  for (size_t l = 0; l < L; ++l)
    for (size_t m = l; m < L; ++m) add_pair(*pair++, centred[l], centred[m]);
}

OutputSums::Rows OutputSums::rows_of(const LayerOutputs& outputs, const Tensor& valid) {
  const int64_t B = valid.size(0), T = valid.size(1);
  const auto places = valid.flatten().nonzero().squeeze(1);  // [R]
  const auto at_places = [&](const Tensor& of_rows) {        // [B,T,..] -> [R,..]
    return of_rows.flatten(0, 1).index_select(0, places);
  };
  auto counted = at::ones({1}, at::kBool);
  if (outputs.counted.defined()) counted = outputs.counted.to(at::kCPU);
  const int64_t columns = counted.dim() < 2 ? 1 : counted.size(-2);
  counted = at_places(counted.expand({B, columns, T}).transpose(1, 2));  // [R,H or 1]
  const auto o = at_places(in_float64(outputs.o).transpose(1, 2));       // [R,H,e]
  return {o.masked_fill(counted.logical_not().unsqueeze(2), 0), counted.to(at::kDouble)};
}

void OutputSums::add_layer(LayerSums& sums, const Rows& rows, const Tensor& weight) {
  const int64_t R = rows.o.size(0), H = rows.o.size(1), e = rows.o.size(2);
  const auto norms = rows.o.norm(2, -1);  // [R,H]
  const auto one = at::ones({R, 1}, at::kDouble);
  add_product(sums.norm, one, norms);
  add_product(sums.rows, one, rows.counted);
  add_product(sums.both, rows.counted, rows.counted);
  const auto units = rows.o / (norms + 1e-20).unsqueeze(2);  // [R,H,e]
  add_product(sums.cosine, units.transpose(1, 2).reshape({R * e, H}),
              units.transpose(1, 2).reshape({R * e, H}));
  if (!weight.defined()) return;
  auto contributions = at::empty({R, H}, at::kDouble);
  for (int64_t h = 0; h < H; ++h) {
    const auto w = weight.narrow(1, h * e, e);  // [D,e]
    contributions.select(1, h).copy_(at::matmul(rows.o.select(1, h), w.t()).norm(2, -1));
  }
  add_product(sums.contribution, one, contributions);
}

void OutputSums::add_hidden(LayerSums& sums, const Tensor& hidden, const Tensor& valid) {
  const auto norm = [](const Tensor& x) { return x.square().sum(0).sum().sqrt().item<double>(); };
  for (int64_t b = 0; b < hidden.size(0); ++b) {
    const auto x = hidden[b].narrow(0, 0, valid[b].sum().item<int64_t>());  // [n,D]
    const double whole = norm(x);
    if (!(whole > 0)) continue;
    sums.ratio += norm(x - x.mean(0)) / whole;
    sums.examples += 1;
  }
}

void OutputSums::add_pair(PairSums& sums, const Rows& x, const Rows& y) {
  const auto of_x = x.o.flatten(1), of_y = y.o.flatten(1);  // [R,H*e], [R,G*f]
  add_product(sums.rows, x.counted, y.counted);
  add_product(sums.x, y.counted, of_x);
  add_product(sums.y, x.counted, of_y);
  add_product(sums.xy, of_x, of_y);
  add_squares(sums.xx, x.o, y.counted);
  add_squares(sums.yy, y.o, x.counted);
}

Tensor OutputSums::cka(const PairSums& s) {
  const int64_t h = s.rows.size(0), H = s.xx.size(1), e = s.xx.size(2);
  const int64_t g = s.rows.size(1), G = s.yy.size(1), f = s.yy.size(2);
  const auto n = s.rows.view({h, g, 1, 1});
  const auto x = s.x.view({g, H, e}).transpose(0, 1);  // [H,g,e]
  const auto y = s.y.view({h, G, f});
  const auto means = [&](const Tensor& a, const Tensor& b) {  // n times the product of both
    return a.unsqueeze(-1) * b.unsqueeze(-2) / n;
  };
  const auto xx = s.xx.transpose(0, 1) - means(x, x);                     // [H,g,e,e]
  const auto yy = s.yy - means(y, y);                                     // [h,G,f,f]
  const auto xy = s.xy.view({H, e, G, f}).transpose(1, 2) - means(x, y);  // [H,G,e,f]
  const auto norm = [](const Tensor& m) { return m.square().sum(at::IntArrayRef({2, 3})).sqrt(); };
  return norm(xy).square() / (norm(xx) * norm(yy));  // [H,G]
}

Tensor OutputSums::output_norm(int64_t layer) const {
  const auto& s = layers_.at(layer);
  return (s.norm / s.rows).squeeze(0);
}

Tensor OutputSums::contribution_norm(int64_t layer) const {
  const auto& s = layers_.at(layer);
  if (s.contribution.defined()) return (s.contribution / s.rows).squeeze(0);
  return at::full_like(s.norm.squeeze(0), std::numeric_limits<double>::quiet_NaN());
}

Tensor OutputSums::output_cosine(int64_t layer) const {
  return layers_.at(layer).cosine / layers_.at(layer).both;
}

double OutputSums::residual_ratio(int64_t layer) const {
  return layers_.at(layer).ratio / layers_.at(layer).examples;
}

Tensor OutputSums::cka() const {
  TORCH_CHECK(options_.likeness, "the likeness of heads was not summed");
  std::vector<int64_t> first{0};
  for (const auto& layer : layers_) first.push_back(first.back() + layer.origin.size(0));
  auto all = at::empty({first.back(), first.back()}, at::kDouble);
  auto pair = pairs_.begin();
  for (size_t l = 0; l < layers_.size(); ++l)
    for (size_t m = l; m < layers_.size(); ++m) {
      const auto block = cka(*pair++);
      all.slice(0, first[l], first[l + 1]).slice(1, first[m], first[m + 1]).copy_(block);
      all.slice(0, first[m], first[m + 1]).slice(1, first[l], first[l + 1]).copy_(block.t());
    }
  return all;
}

double output_disagreement(const Tensor& output_cosine) {
  return output_cosine.nanmean().item<double>();
}

}  // namespace headlab
