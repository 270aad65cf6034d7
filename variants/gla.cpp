// Grouped latent attention, which is not gated linear attention: each token has a few latents, each
// of them for a group of heads, so that devices can share the latents out.
//
// Zadouri et al., "Hardware-Efficient Attention for Fast Decoding", arXiv 2505.21487, section 3.3;
// Dao-AILab/grouped-latent-attention. The equations are those of variants/families/latent_heads.h.
// Head h reads the latent u = h // (H / g), and each latent has a norm of its own:
//   L_u = RMS(m kv_down_u^T) kv_norm_u     z_h = scale (q_n (k_up_h L_u)^T + rope(q_r) R^T)
// One group is multi-head latent attention itself.
#include "variants/families/latent_heads.h"

namespace headlab {
namespace {

struct GlaOptions : LatentOptions {
  int64_t groups = 2;
  std::optional<int64_t> q_rank;
  bool bias = false;
  std::optional<bool> down_bias, up_bias, o_bias;

  void visit(Fields& f) override {
    f("groups", groups, "latents of a token, each of a group of heads", at_least(1));
    f("kv_rank", kv_rank, "features of one latent (default: 2 head_dim)", at_least(1));
    f("q_rank", q_rank,
      "features of a latent that queries are made from; 0: none (default: 8 head_dim)",
      at_least(0));
    LatentOptions::visit(f);
    f("bias", bias, "biases on all projections");
    f("down_bias", down_bias, "biases on q_down (or q), kv_down and k_rope (default: bias)");
    f("up_bias", up_bias, "biases on q_up, k_up and v_up (default: bias)");
    f("o_bias", o_bias, "bias on the output projection (default: bias)");
  }
  void derive(const HeadShape& shape) override {
    LatentOptions::derive(shape);
    const auto p = projections(shape);
    q_rank = p.query_latent;
    down_bias = p.down_bias, up_bias = p.up_bias, o_bias = p.o_bias;
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    if (shape.heads % groups != 0)
      complain("groups", std::to_string(groups) + " do not divide " + std::to_string(shape.heads) +
                             " heads; choose a divisor");
  }
  LatentProjections projections(const HeadShape& shape) const override {
    auto p = widths(shape, 2 * shape.head_dim);
    p.query_latent = q_rank.value_or(8 * shape.head_dim), p.groups = groups;
    p.down_bias = down_bias.value_or(bias), p.up_bias = up_bias.value_or(bias);
    p.q_bias = p.query_latent > 0 ? p.up_bias : p.down_bias;
    p.o_bias = o_bias.value_or(bias);
    return p;
  }
};

const RegisterHeads<HeadsOfLatents<GlaOptions>> registered(
    "gla", "keys and values of each group of heads from a latent");

}  // namespace
}  // namespace headlab
