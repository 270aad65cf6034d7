#include "core/attention/composed/composition.h"

#include "core/attention/attend.h"
#include "core/attention/call/observer.h"
#include "core/attention/maps/map.h"
#include "core/attention/paths/paths.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

// composed [B,H,T,S] and what the part of the key, factors [B,2R(+1),S,H], makes of a.
Tensor with_key(const Tensor& composed, const Tensor& a, const Tensor& factors) {
  const int64_t R = factors.size(1) / 2;
  const auto row = [&](int64_t r) {
    return factors.select(1, r).transpose(1, 2).unsqueeze(2);  // [B,H,1,S]
  };
  Tensor sum;
  for (int64_t r = 0; r < R; ++r) {
    const auto term = (a * row(r)).sum(1, /*keepdim=*/true) * row(R + r);  // [B,H,T,S]
    sum = sum.defined() ? sum + term : term;
  }
  sum = composed + sum;
  return factors.size(1) % 2 == 0 ? sum : sum + a * row(2 * R);
}

// matrix [B,T,H,H], [B,1,H,H] or [1,1,H,H] on a [B,H,T,S].
Tensor apply(const Tensor& a, const Tensor& matrix) {
  if (matrix.size(1) == 1) {  // one product for all queries
    const int64_t B = a.size(0), H = a.size(1);
    const auto to_from = matrix.select(1, 0).transpose(1, 2).expand({B, H, H});
    return at::bmm(to_from, a.flatten(2)).view_as(a);
  }
  const auto rows = a.transpose(1, 2);                              // [B,T,H,S]
  return at::matmul(matrix.transpose(2, 3), rows).transpose(1, 2);  // [B,H,T,S]
}

AttentionCall composed_call(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Composition& pre, const Composition& post, const HeadCall& call,
                            double scale) {
  AttentionCall own(q, k, v, call, scale);
  own.pre = pre, own.post = post;
  if (!pre.is_identity()) own.q = q;  // what is composed of uniform heads is their own
  return own;
}

ComposedMaps maps_of(const AttentionCall& call) {
  const auto products = call.products();
  const auto z = call.biased(call.pre(products)), allowed = call.allowed_keys();
  const auto p = weights_of(z, allowed, call);
  return {products, z, p, composed_weights(p, call.post, allowed)};
}

}  // namespace

Composition Composition::by_matrix(const Tensor& matrix, const Tensor& bias, const Tensor& alive) {
  Composition composition;
  if (!matrix.defined()) return composition;
  // Half types are composed in float32.
  const auto type = at_least_float(matrix);
  auto m = matrix.to(type);
  if (alive.defined()) m = m * alive.unsqueeze(1);
  composition.matrix_ = m.unsqueeze(0).unsqueeze(0);  // [1,1,H,H]
  if (bias.defined()) composition.bias_ = bias.to(type);
  return composition;
}

Tensor Composition::operator()(const Tensor& a) const {
  if (is_identity()) return a;
  const WithoutAutocast exact;
  auto composed = apply(a, matrix_);
  if (key_.defined()) composed = with_key(composed, a, key_);
  const auto by_head = [](const Tensor& t) { return t.view({-1, 1, 1}); };
  if (bias_.defined()) composed = composed + by_head(bias_);
  if (!norm_.weight.defined()) return composed;
  const auto square = (composed * composed * by_head(norm_.share)).sum(1, /*keepdim=*/true);
  return composed * (square + norm_.eps).rsqrt() * by_head(norm_.weight) + by_head(norm_.bias);
}

ComposedMaps composed_maps(const Tensor& q, const Tensor& k, const Composition& pre,
                           const Composition& post, const HeadCall& call, double scale) {
  return maps_of(composed_call(q, k, {}, pre, post, call, scale));
}

Tensor composed_weights(const Tensor& p, const Composition& post, const Tensor& allowed) {
  if (post.is_identity()) return p;
  const auto a = post(p);
  // A pair that is hidden from every head stays 0 but for a bias or a norm; one that is hidden from
  // some gets the others'.
  const bool by_head = allowed.defined() && allowed.dim() > 2 && allowed.size(-3) > 1;
  const bool returns = by_head || (allowed.defined() && post.adds());
  return returns ? a.masked_fill(allowed.logical_not(), 0) : a;
}

ComposedHeads composed_attend(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Composition& pre, const Composition& post, const HeadCall& call,
                              double scale) {
  const auto own = composed_call(q, k, v, pre, post, call, scale);
  if (own.is_plain()) return {attend(q, k, v, call, scale), {}};
  ComposedHeads heads{attended(own).out, {}};
  if (!call.observer || !call.observer->wants_maps()) return heads;
  // The maps are made for the observer alone, so that what it sees changes nothing.
  at::NoGradGuard no_grad;
  const auto maps = heads.shown = maps_of(own);
  observe_weights(
      {.scores = maps.scores, .p = maps.weights, .a = maps.composed, .v = v, .out = heads.out},
      call);
  return heads;
}

const std::vector<Statistic>& composed_statistics() {
  static const std::vector<Statistic> table{
      {.name = "composed_row_sum",
       .long_name = "sum of the composed weights of a row",
       .formula = "mean over rows of sum_j a', a' the weights that meet the values"},
      {.name = "composed_negative_mass",
       .long_name = "negative part of the composed weights of a row",
       .formula = "mean over rows of sum_j max(-a', 0)"},
      {.name = "composed_first_token",
       .long_name = "composed weight on the first token",
       .formula = "mean over rows of a'[i,0]",
       .needs_places = true}};
  return table;
}

Statistic off_diagonal_statistic(const char* name, const char* long_name) {
  return layer_statistic(name, "1", long_name, "sum_{h != g} |w[h,g]| / sum |w[h,g]|");
}

void report_off_diagonal(HeadObserver& observer, const std::string& name, const Tensor& weight,
                         const Tensor& alive) {
  auto mass = weight.detach().to(at::kDouble).abs();  // [H,H]
  if (alive.defined()) mass = mass * alive * alive.unsqueeze(1);
  observer.report(name, mass.sum() - mass.trace(), mass.sum());
}

}  // namespace headlab
