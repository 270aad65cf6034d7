// Entmax attention: alpha-entmax instead of the softmax, so that keys can get no weight at all.
//
// Peters et al., "Sparse Sequence-to-Sequence Models", arXiv 1905.05702, equation (10); an alpha
// for each head that is learned: Correia et al., "Adaptively Sparse Transformers", arXiv
// 1909.00015, equation (9), here with a floor, since near 1 its gradient is ill-conditioned:
//   A = alpha-entmax(z), alpha_h = max(1 + sigmoid(alpha_h), 1.01)
#include "core/attention/entmax.h"

#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kFloor = 1.01;

struct EntmaxOptions : MhaOptions {
  double alpha = 1.5;
  bool learn_alpha = false;

  void visit(Fields& f) override {
    MhaOptions::visit(f);
    f("alpha", alpha, "of all heads: 1 is the softmax, 2 sparsemax; larger is sparser",
      at_least(1));
    f("learn_alpha", learn_alpha,
      "each head learns its alpha, between 1.01 and 2; then `alpha` is not used");
  }
};

class Entmax : public ProjectedHeads<EntmaxOptions> {
 public:
  Entmax(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    if (options.learn_alpha)
      alpha_ = parameter("alpha", at::randn({shape.heads}), heads_along({0}));
  }

  std::vector<Statistic> own_statistics() const override {
    return {head_statistic("alpha", "1", "alpha of the entmax", "1: softmax, 2: sparsemax"),
            head_statistic("support", "key", "keys with weight",
                           "mean over rows of the number of a > 0"),
            head_statistic("support_share", "1", "share of the allowed keys with weight",
                           "mean over rows of the number of a > 0 over n_i"),
            head_statistic("support_one", "1", "share of rows with a single key",
                           "share of rows with one a > 0")};
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const auto heads = is_softmax() ? softmax(q, k, v, call) : sparse(q, k, v, call);  // [B,H,T,d]
    return {.y = output(heads, call)};                                                 // [B,T,D]
  }

  bool is_softmax() const { return !options_.learn_alpha && options_.alpha == 1; }

  Tensor softmax(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call) const {
    if (call.observer && call.observer->wants_statistics()) {
      const auto map = q.new_empty({}).expand({q.size(0), q.size(1), q.size(2), k.size(2)});
      const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), q.device());
      const auto keys = counted_pairs(map, allowed, call.mask).sum(-1);  // [B,H,T]
      report(*call.observer, keys, keys);                                // all have weight
    }
    return attend(q, k, v, call, scale());  // [B,H,T,d]
  }

  Tensor sparse(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call) const {
    const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), q.device());
    const auto z = scores(q, k, call, scale());  // [B,H,T,S]
    const auto a = options_.learn_alpha
                       ? entmax(z, allowed, alphas(z.scalar_type()).view({-1, 1, 1}), call.backend)
                       : entmax(z, allowed, options_.alpha, call.backend);  // [B,H,T,S]
    const auto heads = weighted_values(a, v, call);                         // [B,H,T,d]
    if (call.observer) {
      call.observer->weights({.p = a, .a = a, .scores = z, .softmax = false, .v = v, .out = heads},
                             call);
      if (call.observer->wants_statistics())
        report(*call.observer, (a > 0).sum(-1), counted_pairs(a, allowed, call.mask).sum(-1));
    }
    return heads;
  }

  Tensor alphas(at::ScalarType type) const {  // [H]
    return (1 + alpha_.to(type).sigmoid()).clamp_min(kFloor);
  }

  // Of each row the keys with weight and the keys that it may attend to, 0 where it does not count:
  // [B,H,T].
  void report(HeadObserver& observer, const Tensor& support, const Tensor& keys) const {
    const auto rows = keys > 0;
    const auto one = at::ones({keys.size(1)}, keys.options().dtype(at::kDouble));
    observer.report("alpha", options_.learn_alpha ? alphas(at::kDouble) : one * options_.alpha,
                    one);
    report_rows(observer, "support", support, rows);
    report_rows(observer, "support_share", support / keys.clamp_min(1).to(at::kDouble), rows);
    report_rows(observer, "support_one", support == 1, rows);
  }

  Tensor alpha_;  // [H] raw
};

const RegisterHeads<Entmax> registered("entmax",
                                       "sparse attention by alpha-entmax, alpha given or learned");

}  // namespace
}  // namespace headlab
