// Heads with a learned temperature each: softmax(q k^T / (tau_h sqrt d)) v.
#include <cmath>

#include "core/heads.h"
#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {
namespace {

class Temperature : public AttentionHeads {
 public:
  struct Options : HeadOptions {
    double start = 1;
    void visit(Fields& f) override { f("start", start, "tau before training", above(0)); }
    HeadTraits traits() const override { return {.cross = false, .rotary = false}; }
  };

  Temperature(const HeadShape& s, const Options& options) : AttentionHeads(s, options.traits()) {
    q_ = projection("q", s.d_model, s.heads * s.head_dim, false);
    k_ = projection("k", s.d_model, s.heads * s.head_dim, false);
    v_ = projection("v", s.d_model, s.heads * s.head_dim, false);
    o_ = projection("o", s.heads * s.head_dim, s.d_model, false);
    for (auto* linear : {&q_, &k_, &v_}) init_normal(*linear, 0.02);
    init_normal(o_, residual_std(s.layers));
    log_tau_ = register_parameter("log_tau", at::full({s.heads}, std::log(options.start)));
  }

  std::shared_ptr<AttentionHeads> slice() const override {  // the heads that are left, copied
    const Kept kept = kept_heads();
    auto sliced = std::make_shared<Temperature>(kept.shape, Options{});
    sliced->adopt_indices(*this, kept);
    copy_heads(sliced->q_, q_, kept.rows, shape_.head_dim);
    copy_heads(sliced->k_, k_, kept.rows, shape_.head_dim);
    copy_heads(sliced->v_, v_, kept.rows, shape_.head_dim);
    copy_head_columns(sliced->o_, o_, kept.rows, shape_.head_dim);
    keep_heads(sliced->log_tau_, log_tau_, kept.rows);
    return sliced;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    if (ctx.probe) ctx.probe->output_weight(o_->weight);  // statistics of outputs need it
    auto q = split_heads(q_(x), shape_.heads);            // [B,H,T,d]
    auto k = remembered(ctx, "k", [&] { return split_heads(k_(x), shape_.heads); });  // [B,H,S,d]
    auto v = remembered(ctx, "v", [&] { return split_heads(v_(x), shape_.heads); });  // [B,H,S,d]
    auto heads = attend(q / log_tau_.exp().view({1, -1, 1, 1}), k, v, ctx,
                        1 / std::sqrt(shape_.head_dim));  // [B,H,T,d]
    return {.y = o_(merge_heads(heads, ctx))};            // [B,T,D]
  }

  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  Tensor log_tau_;  // [H]
};

const RegisterHeads<Temperature> registered("temperature", "each head learns how sharp it is");

}  // namespace
}  // namespace headlab
