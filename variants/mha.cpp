// Multi-head attention: every head attends by itself, softmax(q k^T / sqrt d) v.
//
// Vaswani et al., "Attention Is All You Need", arXiv 1706.03762, equations (1) and section 3.2.2.
// Query heads may share key/value heads: grouped-query attention (Ainslie et al., arXiv 2305.13245;
// query head h reads key/value head h // (H / Hkv)), one key/value head is multi-query attention
// (Shazeer, arXiv 1911.02150). qk_norm: Qwen3's RMS norm of queries and keys, before rope.
#include <torch/torch.h>

#include <cmath>
#include <iterator>

#include "core/heads.h"
#include "core/norm.h"
#include "core/probe.h"

namespace headlab {
namespace {

class Mha : public AttentionHeads {
 public:
  struct Options : HeadOptions {
    bool bias = false;
    std::optional<bool> qkv_bias, o_bias;
    bool qk_norm = false;
    double qk_norm_eps = 1e-6;
    std::optional<double> scale;

    void visit(Fields& f) override {
      f("bias", bias, "biases on all four projections");
      f("qkv_bias", qkv_bias, "biases on q, k and v (default: bias)");
      f("o_bias", o_bias, "bias on the output projection (default: bias)");
      f("qk_norm", qk_norm, "RMS norm of each query and key before rope, one weight for all heads");
      f("qk_norm_eps", qk_norm_eps, "epsilon of qk_norm", above(0));
      f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
    }
  };

  Mha(const HeadShape& s, const Options& options) : AttentionHeads(s), options_(options) {
    const bool qkv_bias = options.qkv_bias.value_or(options.bias);
    q_ = projection("q", s.d_model, s.heads * s.head_dim, qkv_bias);
    k_ = projection("k", s.d_model, s.kv_heads * s.head_dim, qkv_bias);
    v_ = projection("v", s.d_model, s.kv_heads * s.head_dim, qkv_bias);
    o_ = projection("o", s.heads * s.head_dim, s.d_model, options.o_bias.value_or(options.bias));
    for (auto* linear : {&q_, &k_, &v_}) init_normal(*linear, 0.02);
    init_normal(o_, residual_std(s.layers));
    if (options.qk_norm) {
      q_norm_ = register_module("q_norm", RmsNorm(s.head_dim, options.qk_norm_eps));
      k_norm_ = register_module("k_norm", RmsNorm(s.head_dim, options.qk_norm_eps));
    }
  }

  HeadTraits traits() const override { return {.grouped = true}; }

  std::shared_ptr<AttentionHeads> slice() const override {
    const Kept kept = kept_heads();
    HeadShape smaller = shape_;
    smaller.heads = std::ssize(kept.rows);
    smaller.kv_heads = std::ssize(kept.kv_rows);
    auto sliced = std::make_shared<Mha>(smaller, options_);
    sliced->adopt_indices(*this, kept);
    copy_heads(sliced->q_, q_, kept.rows, shape_.head_dim);
    copy_heads(sliced->k_, k_, kept.kv_rows, shape_.head_dim);
    copy_heads(sliced->v_, v_, kept.kv_rows, shape_.head_dim);
    copy_head_columns(sliced->o_, o_, kept.rows, shape_.head_dim);
    if (q_norm_) sliced->q_norm_->weight.set_data(q_norm_->weight.detach().clone());
    if (k_norm_) sliced->k_norm_->weight.set_data(k_norm_->weight.detach().clone());
    return sliced;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    const bool cross = ctx.memory.defined();
    const auto& source = cross ? ctx.memory : x;
    if (ctx.probe) ctx.probe->output_weight(o_->weight);

    auto q =
        rotate(norm(q_norm_, split_heads(q_(x), shape_.heads)), ctx, ctx.positions);  // [B,H,T,d]
    auto k = remembered(ctx, "k", [&] {
      auto places = cross ? at::arange(source.size(1), ctx.positions.options()) : ctx.positions;
      return rotate(norm(k_norm_, split_heads(k_(source), shape_.kv_heads)), ctx, places);
    });  // [B,Hkv,S,d]
    auto v = remembered(ctx, "v", [&] { return split_heads(v_(source), shape_.kv_heads); });
    const double scale = options_.scale.value_or(1 / std::sqrt(shape_.head_dim));
    auto heads = attend(q, k, v, ctx, scale);   // [B,H,T,d]
    return {.y = o_(merge_heads(heads, ctx))};  // [B,T,D]
  }

  static Tensor norm(RmsNorm& norm, const Tensor& x) { return norm ? norm(x) : x; }

  Options options_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
};

const RegisterHeads<Mha> registered("mha", "multi-head, grouped-query and multi-query attention");

}  // namespace
}  // namespace headlab
