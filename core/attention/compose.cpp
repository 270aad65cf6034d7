#include "core/attention/compose.h"

#include "core/attention/attend.h"
#include "core/attention/map_statistics.h"
#include "core/attention/observer.h"
#include "core/attention/paths.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Factors [B,2R+1,N,H] as they meet a map [B,H,T,S]: row r of the queries [B,H,T,1], of the keys
// [B,H,1,S].
Tensor factor(const Tensor& factors, int64_t r, int64_t token_dim) {
  return factors.select(1, r).transpose(1, 2).unsqueeze(token_dim == 2 ? 3 : 2);
}

Tensor low_rank(const Tensor& a, const Tensor& factors, int64_t token_dim) {
  const int64_t R = factors.size(1) / 2;
  Tensor sum;
  for (int64_t r = 0; r < R; ++r) {
    const auto mixed = (a * factor(factors, r, token_dim)).sum(1, /*keepdim=*/true);  // [B,1,T,S]
    const auto term = mixed * factor(factors, R + r, token_dim);                      // [B,H,T,S]
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

// Behind the rows w1 and w2 stand gates, or none.
bool has_gates(const Tensor& factors) { return factors.size(1) % 2 == 1; }

Tensor by_gates(const Tensor& a, const Tensor& factors, int64_t token_dim) {
  return a * factor(factors, factors.size(1) - 1, token_dim);
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

}  // namespace

Composition::Composition(const Tensor& fixed, const Tensor& query, const Tensor& key) {
  const WithoutAutocast exact;
  const auto wide = [](const Tensor& t) { return t.defined() ? widened(t) : t; };
  fixed_ = wide(fixed), query_ = wide(query), key_ = wide(key);
  const auto& some = fixed_.defined() ? fixed_ : query_.defined() ? query_ : key_;
  auto matrix = at::eye(some.size(-1), some.options());
  if (fixed_.defined()) matrix = matrix + fixed_;
  matrix = matrix.unsqueeze(0).unsqueeze(0);  // [1,1,H,H]
  if (query_.defined()) {
    const int64_t R = query_.size(1) / 2;
    const auto w1 = query_.narrow(1, 0, R).permute({0, 2, 3, 1});  // [B,T,H,R]
    const auto w2 = query_.narrow(1, R, R).permute({0, 2, 1, 3});  // [B,T,R,H]
    matrix = matrix + at::matmul(w1, w2);
    if (has_gates(query_)) matrix = matrix + at::diag_embed(query_.select(1, 2 * R));
  }
  matrix_ = matrix;
}

Composition Composition::by_matrix(const Tensor& matrix, const Tensor& bias, const Tensor& alive) {
  Composition composition;
  if (!matrix.defined()) return composition;
  // Half types are composed in float32.
  const auto type = at::promote_types(matrix.scalar_type(), at::kFloat);
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
  if (key_.defined()) composed = composed + low_rank(a, key_, 3);
  if (key_.defined() && has_gates(key_)) composed = composed + by_gates(a, key_, 3);
  return bias_.defined() ? composed + bias_.view({-1, 1, 1}) : composed;
}

std::vector<Tensor> Composition::terms(const Tensor& a) const {
  const WithoutAutocast exact;
  std::vector<Tensor> terms(5);
  if (fixed_.defined()) terms[0] = apply(a, fixed_.unsqueeze(0).unsqueeze(0));
  const auto add = [&](const Tensor& factors, int64_t token_dim, int n) {
    if (!factors.defined()) return;
    terms[n] = low_rank(a, factors, token_dim);
    if (has_gates(factors)) terms[n + 1] = by_gates(a, factors, token_dim);
  };
  add(query_, 2, 1);
  add(key_, 3, 3);
  return terms;
}

namespace {

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

ComposedMaps composed_maps(const Tensor& q, const Tensor& k, const Composition& pre,
                           const Composition& post, const HeadCall& call, double scale) {
  return maps_of(composed_call(q, k, {}, pre, post, call, scale));
}

Tensor composed_weights(const Tensor& p, const Composition& post, const Tensor& allowed) {
  if (post.is_identity()) return p;
  const auto a = post(p);
  // A pair that is hidden from every head stays 0 but for a bias; one that is hidden from some gets
  // the others'.
  const bool by_head = allowed.defined() && allowed.dim() > 2 && allowed.size(-3) > 1;
  const bool returns = by_head || (allowed.defined() && post.bias().defined());
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

}  // namespace headlab
