// Entmax attention: alpha-entmax instead of the softmax, so that keys can get no weight at all.
//
// Peters et al., "Sparse Sequence-to-Sequence Models", arXiv 1905.05702, equation (10); an alpha
// for each head that is learned: Correia et al., "Adaptively Sparse Transformers", arXiv
// 1909.00015, equation (9), here with a floor, since near 1 its gradient is ill-conditioned:
//   A = alpha-entmax(z), alpha_h = max(1 + sigmoid(alpha_h), 1.01)
#include "core/attention/entmax.h"

#include "core/observe/probe.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kFloor = 1.01;

class Entmax : public ProjectedHeads {
 public:
  struct Options : MhaOptions {
    double alpha = 1.5;
    bool learn_alpha = false;

    void visit(Fields& f) override {
      MhaOptions::visit(f);
      f("alpha", alpha, "of all heads: 1 is the softmax, 2 sparsemax; larger is sparser",
        at_least(1));
      f("learn_alpha", learn_alpha,
        "each head learns its alpha, between 1.01 and 2; then `alpha` is not used");
    }
    HeadTraits traits() const override { return {.grouped = true}; }
  };

  Entmax(const HeadShape& shape, const Options& options)
      : ProjectedHeads(shape, options.traits(), options.projections()), options_(options) {
    if (options.learn_alpha) alpha_ = register_parameter("alpha", at::randn({shape.heads}));
  }

  std::shared_ptr<AttentionHeads> slice() const override {
    const auto kept = kept_heads();
    auto sliced = slice_projections<Entmax>(options_, kept);
    if (options_.learn_alpha) keep_heads(sliced->alpha_, alpha_, kept.rows);
    return sliced;
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
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    if (ctx.probe) ctx.probe->output_weight(o_->weight);
    const auto q = queries(x, ctx);                                                  // [B,H,T,d]
    const auto k = keys(x, ctx), v = values(x, ctx);                                 // [B,Hkv,S,d]
    const auto heads = is_softmax() ? softmax(q, k, v, ctx) : sparse(q, k, v, ctx);  // [B,H,T,d]
    return {.y = output(heads, ctx)};                                                // [B,T,D]
  }

  bool is_softmax() const { return !options_.learn_alpha && options_.alpha == 1; }

  Tensor softmax(const Tensor& q, const Tensor& k, const Tensor& v, const HeadContext& ctx) const {
    if (ctx.probe && ctx.probe->statistics) {
      const auto map = q.new_empty({}).expand({q.size(0), q.size(1), q.size(2), k.size(2)});
      const auto allowed = allowed_keys(ctx.mask, q.size(2), k.size(2), q.device());
      const auto keys = counted_pairs(map, allowed, ctx.mask).sum(-1);  // [B,H,T]
      report(*ctx.probe, keys, keys);                                   // all have weight
    }
    return attend(q, k, v, ctx, scale(options_));  // [B,H,T,d]
  }

  Tensor sparse(const Tensor& q, const Tensor& k, const Tensor& v, const HeadContext& ctx) const {
    const auto allowed = allowed_keys(ctx.mask, q.size(2), k.size(2), q.device());
    const auto z = scores(q, k, ctx, scale(options_));  // [B,H,T,S]
    const auto a = options_.learn_alpha
                       ? entmax(z, allowed, alphas(z.scalar_type()).view({-1, 1, 1}), ctx.backend)
                       : entmax(z, allowed, options_.alpha, ctx.backend);  // [B,H,T,S]
    const auto heads = weighted_values(a, v, ctx);                         // [B,H,T,d]
    if (ctx.probe) {
      ctx.probe->weights(a, a, v, heads, ctx);
      if (ctx.probe->statistics)
        report(*ctx.probe, (a > 0).sum(-1), counted_pairs(a, allowed, ctx.mask).sum(-1));
    }
    return heads;
  }

  Tensor alphas(at::ScalarType type) const {  // [H]
    return (1 + alpha_.to(type).sigmoid()).clamp_min(kFloor);
  }

  // Of each row the keys with weight and the keys that it may attend to, 0 where it does not count:
  // [B,H,T].
  void report(HeadProbe& probe, const Tensor& support, const Tensor& keys) const {
    const auto rows = keys > 0;
    const auto mean_over_rows = [&](const char* name, const Tensor& of_row) {
      const auto sum = at::where(rows, of_row.to(at::kDouble), 0.0).sum(at::IntArrayRef({0, 2}));
      probe.report(name, sum, rows.sum(at::IntArrayRef({0, 2})));  // [H]
    };
    const auto one = at::ones({keys.size(1)}, keys.options().dtype(at::kDouble));
    probe.report("alpha", options_.learn_alpha ? alphas(at::kDouble) : one * options_.alpha, one);
    mean_over_rows("support", support);
    mean_over_rows("support_share", support / keys.clamp_min(1).to(at::kDouble));
    mean_over_rows("support_one", support == 1);
  }

  Options options_;
  Tensor alpha_;  // [H] raw
};

const RegisterHeads<Entmax> registered("entmax",
                                       "sparse attention by alpha-entmax, alpha given or learned");

}  // namespace
}  // namespace headlab
