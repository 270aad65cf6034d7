// Talking heads: the scores are mixed across heads before the softmax, the weights after it.
//
// Shazeer et al., "Talking-Heads Attention", arXiv 2003.02436, section 4, here with as many key,
// softmax and value heads as heads:
//   z'_g = sum_h z_h pre[h,g] (+ pre_bias_g), then biases, mask and softmax give P
//   A_g = mask * (sum_h P_h post[h,g] (+ post_bias_g))
#include "core/attention/mix_heads.h"
#include "core/observe/probe.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

class Talking : public ProjectedHeads {
 public:
  struct Options : MhaOptions {
    bool pre = true, post = true, mix_bias = false;

    void visit(Fields& f) override {
      MhaOptions::visit(f);
      f("pre", pre, "mixes the scores across heads before the softmax");
      f("post", post, "mixes the weights across heads after the softmax");
      f("mix_bias", mix_bias, "a bias for each head behind each mixing");
    }
    void check(const Complain& complain) const override {
      if (mix_bias && !pre && !post)
        complain("mix_bias", "there is no mixing to add it to; turn on pre or post");
    }
    HeadTraits traits() const override {
      return {.independent = !pre && !post, .rows_sum_to_one = !post, .grouped = true};
    }
  };

  // The mixings start as the identity, the layer as plain multi-head attention.
  Talking(const HeadShape& shape, const Options& options)
      : ProjectedHeads(shape, options.traits(), options.projections()), options_(options) {
    const int64_t H = shape.heads;
    if (options.pre) pre_ = register_parameter("pre", at::eye(H));
    if (options.post) post_ = register_parameter("post", at::eye(H));
    if (!options.mix_bias) return;
    if (options.pre) pre_bias_ = register_parameter("pre_bias", at::zeros({H}));
    if (options.post) post_bias_ = register_parameter("post_bias", at::zeros({H}));
  }

  std::shared_ptr<AttentionHeads> slice() const override {
    const auto kept = kept_heads();
    auto sliced = slice_projections<Talking>(options_, kept);
    keep_mixing(sliced->pre_, pre_, kept.rows);
    keep_mixing(sliced->post_, post_, kept.rows);
    if (pre_bias_.defined()) keep_heads(sliced->pre_bias_, pre_bias_, kept.rows);
    if (post_bias_.defined()) keep_heads(sliced->post_bias_, post_bias_, kept.rows);
    return sliced;
  }

  std::vector<Statistic> own_statistics() const override {
    auto statistics = options_.post ? composed_statistics() : std::vector<Statistic>{};
    if (options_.pre)
      statistics.push_back(layer_statistic("pre_off_diagonal", "1",
                                           "share of the score mixing between heads",
                                           "sum_{h != g} |pre[h,g]| / sum |pre[h,g]|"));
    if (options_.post)
      statistics.push_back(layer_statistic("post_off_diagonal", "1",
                                           "share of the weight mixing between heads",
                                           "sum_{h != g} |post[h,g]| / sum |post[h,g]|"));
    return statistics;
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const double H = static_cast<double>(shape_.heads);
    return AttentionHeads::flops(T, S, pairs) + 2 * H * H * pairs * (options_.pre + options_.post);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    if (ctx.probe) ctx.probe->output_weight(o_->weight);
    const auto q = queries(x, ctx);                   // [B,H,T,d]
    const auto k = keys(x, ctx), v = values(x, ctx);  // [B,Hkv,S,d]
    if (!options_.pre && !options_.post)
      return {.y = output(attend(q, k, v, ctx, scale(options_)), ctx)};  // [B,T,D]
    const auto allowed = allowed_keys(ctx.mask, q.size(2), k.size(2), q.device());
    const auto p = masked_softmax(mixed_scores(q, k, ctx), allowed);  // [B,H,T,S]
    const auto a = mixed_weights(p, allowed, ctx);                    // [B,H,T,S]
    const auto heads = weighted_values(a, v, ctx);                    // [B,H,T,d]
    if (ctx.probe) observe(p, a, v, heads, ctx);
    return {.y = output(heads, ctx)};  // [B,T,D]
  }

  // Biases and masks act on mixed scores: a mixing of hidden ones would mix infinities.
  Tensor mixed_scores(const Tensor& q, const Tensor& k, const HeadContext& ctx) const {
    const auto z = scaled_products(q, k, ctx, scale(options_));  // [B,H,T,S]
    return add_biases(options_.pre ? mix_heads(z, pre_, pre_bias_, ctx.alive) : z, ctx);
  }

  Tensor mixed_weights(const Tensor& p, const Tensor& allowed, const HeadContext& ctx) const {
    if (!options_.post) return p;
    const auto mixed = mix_heads(p, post_, post_bias_, ctx.alive);
    return allowed.defined() ? mixed.masked_fill(allowed.logical_not(), 0) : mixed;
  }

  void observe(const Tensor& p, const Tensor& a, const Tensor& v, const Tensor& heads,
               const HeadContext& ctx) const {
    ctx.probe->weights(p, a, v, heads, ctx);
    if (options_.pre) report_off_diagonal(*ctx.probe, "pre_off_diagonal", pre_, ctx.alive);
    if (options_.post) report_off_diagonal(*ctx.probe, "post_off_diagonal", post_, ctx.alive);
  }

  Options options_;
  Tensor pre_, post_, pre_bias_, post_bias_;  // [H,H] index [from, to]; [H]
};

const RegisterHeads<Talking> registered("talking", "heads that mix their scores and weights");

}  // namespace
}  // namespace headlab
