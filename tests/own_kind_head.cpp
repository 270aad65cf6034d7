// Heads with a learned temperature each and weights that are no softmax: key j gets
//   a_ij = sigmoid(z_ij / tau_h + s_hj - ln n_i),   z = q k^T / sqrt d (+ biases),
// of the n_i keys that query i may see, each of which says itself how strongly (s): a row need not
// sum to 1, so that a head can say nothing.
#include <cmath>

#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct TemperedOptions : MhaOptions {
  double start = 1;
  bool strength = true;

  void visit(Fields& f) override {
    MhaOptions::visit(f);
    f("start", start, "tau before training", above(0));
    f("strength", strength, "each key says how strongly it may be attended to");
  }
  HeadTraits traits() const override { return {.rows_sum_to_one = false, .grouped = true}; }
};

class Tempered : public ProjectedHeads<TemperedOptions> {
 public:
  Tempered(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    log_tau_ = parameter("log_tau", at::full({shape.heads}, std::log(options.start)),
                         heads_along({0}));  // [H]
    if (!options.strength) return;
    strength_ = projection("strength", shape.d_model, shape.heads, /*bias=*/true, rows_of_heads());
    init_input(strength_, shape);
  }

  std::vector<Statistic> own_statistics() const override {
    return {head_statistic("row_sum", "1", "what a row gives away", "mean over rows of sum_j a")};
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                                            // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);                          // [B,Hkv,S,d]
    auto z = scores(q, k, call, scale()) / log_tau_.exp().view({1, -1, 1, 1});  // [B,H,T,S]
    if (strength_) z = z + strength(x, call).transpose(2, 3);
    const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), x.device());
    const auto a = weights(z, allowed, call);        // [B,H,T,S]
    const auto heads = weighted_values(a, v, call);  // [B,H,T,d]
    if (call.observer) observe(*call.observer, {.a = a, .scores = z, .v = v, .out = heads}, call);
    return {.y = output(heads, call)};  // [B,T,D]
  }

  // Kept beside keys and values while decoding: [B,H,S,1].
  Tensor strength(const Tensor& x, const HeadCall& call) {
    return cached(call, "strength",
                  [&] { return strength_(rest_of_source(x, call)).transpose(1, 2).unsqueeze(-1); });
  }

  // 0 where a key is hidden, also in rows that see none; no gradient passes there. An ablation may
  // ask heads to weigh every key that they see by 1 / n.
  static Tensor weights(const Tensor& z, const Tensor& allowed, const HeadCall& call) {
    const auto seen = allowed.defined() ? allowed.expand_as(z) : at::ones_like(z, at::kBool);
    const auto n = seen.sum(-1, /*keepdim=*/true).clamp_min(1).to(z.scalar_type());  // [B,H,T,1]
    auto a = (z - n.log()).sigmoid();
    if (call.uniform.defined()) a = at::where(call.uniform.view({-1, 1, 1}), 1 / n, a);
    return a.masked_fill(seen.logical_not(), 0);
  }

  static void observe(HeadObserver& observer, ObservedMap map, const HeadCall& call) {
    map.p = map.a;
    map.softmax = map.rows_sum_to_one = false;
    observer.weights(map, call);
    if (!observer.wants_statistics()) return;
    const auto allowed = allowed_keys(call.mask, map.a.size(2), map.a.size(3), map.a.device());
    report_rows(observer, "row_sum", map.a.sum(-1),
                counted_pairs(map.a, allowed, call.mask).any(-1));
  }

  Tensor log_tau_;            // [H]
  Linear strength_{nullptr};  // D -> H
};

const RegisterHeads<Tempered> registered("tempered", "heads that may say nothing");

}  // namespace
}  // namespace headlab
