// Grouped latent attention, which is not gated linear attention: each token has a few latents, each
// of them for a group of heads, so that devices can share the latents out.
//
// Zadouri et al., "Hardware-Efficient Attention for Fast Decoding", arXiv 2505.21487, section 3.3;
// Dao-AILab/grouped-latent-attention. Multi-head latent attention (core/families/latent_heads.h,
// which has the equations) where head h reads latent u = h // (H / g), each with a norm of its own:
//   L_u = RMS(m kv_down_u^T) kv_norm_u     z_h = scale (q_n (k_up_h L_u)^T + rope(q_r) R^T)
// One group is multi-head latent attention itself.
#include "core/config/config.h"
#include "core/families/latent_heads.h"

namespace headlab {
namespace {

struct GlaOptions : HeadOptions, DerivedDefaults<HeadShape> {
  int64_t groups = 2;
  std::optional<int64_t> kv_rank, q_rank, nope_dim, rope_dim, value_dim;
  double norm_eps = 1e-6;
  std::optional<double> scale;
  bool bias = false;
  std::optional<bool> down_bias, up_bias, o_bias;

  void visit(Fields& f) override {
    f("groups", groups, "latents of a token, each of a group of heads", at_least(1));
    f("kv_rank", kv_rank, "features of one latent (default: 2 head_dim)", at_least(1));
    f("q_rank", q_rank,
      "features of a latent that queries are made from; 0: none (default: 8 head_dim)",
      at_least(0));
    f("nope_dim", nope_dim, "query and key features without positions (default: head_dim)",
      at_least(1));
    f("rope_dim", rope_dim,
      "query and key features with rotary positions, keys of all heads alike (default: head_dim / "
      "2)",
      at_least(0));
    f("value_dim", value_dim, "features of a value (default: head_dim)", at_least(1));
    f("norm_eps", norm_eps, "epsilon of the norms of latents", above(0));
    f("scale", scale, "factor on q k^T (default: (nope_dim + rope_dim)^-0.5)");
    f("bias", bias, "biases on all projections");
    f("down_bias", down_bias, "biases on q_down (or q), kv_down and k_rope (default: bias)");
    f("up_bias", up_bias, "biases on q_up, k_up and v_up (default: bias)");
    f("o_bias", o_bias, "bias on the output projection (default: bias)");
  }
  HeadTraits traits() const override { return {.own_values = true}; }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override {
    const auto p = projections(shape);
    kv_rank = p.latent, q_rank = p.query_latent, nope_dim = p.content, rope_dim = p.rope;
    value_dim = p.value, down_bias = p.down_bias, up_bias = p.up_bias, o_bias = p.o_bias;
    if (!scale) scale = p.usual_scale();
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    if (shape.heads % groups != 0)
      complain("groups", std::to_string(groups) + " do not divide " + std::to_string(shape.heads) +
                             " heads; choose a divisor");
  }
  LatentProjections projections(const HeadShape& s) const {
    const bool down = down_bias.value_or(bias);
    return {.latent = kv_rank.value_or(2 * s.head_dim),
            .query_latent = q_rank.value_or(8 * s.head_dim),
            .content = nope_dim.value_or(s.head_dim),
            .rope = rope_dim.value_or(s.head_dim / 2),
            .value = value_dim.value_or(s.head_dim),
            .groups = groups,
            .norm_eps = norm_eps,
            .scale = scale,
            .q_bias = down,
            .down_bias = down,
            .up_bias = up_bias.value_or(bias),
            .o_bias = o_bias.value_or(bias)};
  }
};

class Gla : public LatentHeads {
 public:
  using Options = GlaOptions;
  Gla(const HeadShape& shape, const Options& options)
      : LatentHeads(shape, options.traits(), options.projections(shape)) {}
};

const RegisterHeads<Gla> registered("gla", "keys and values of each group of heads from a latent");

}  // namespace
}  // namespace headlab
