// Multi-head latent attention: keys and values of all heads are made from one latent of each token,
// which is all that decoding has to keep, beside a key for rotary positions that the heads share.
//
// DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C (V3: arXiv 2412.19437). The equations
// are those of core/families/latent_heads.h with one latent L = RMS(m kv_down^T) kv_norm.
#include "core/config/config.h"
#include "core/families/latent_heads.h"

namespace headlab {
namespace {

struct MlaOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> kv_rank, nope_dim, rope_dim, value_dim;
  int64_t q_rank = 0;
  double norm_eps = 1e-6;
  std::optional<double> scale;
  bool bias = false, q_bias = false, norm = true;

  void visit(Fields& f) override {
    f("kv_rank", kv_rank, "features of the latent (default: 4 head_dim)", at_least(1));
    f("q_rank", q_rank, "features of a latent that queries are made from; 0: none", at_least(0));
    f("nope_dim", nope_dim, "query and key features without positions (default: head_dim)",
      at_least(1));
    f("rope_dim", rope_dim,
      "query and key features with rotary positions, keys of all heads alike (default: head_dim / "
      "2)",
      at_least(0));
    f("value_dim", value_dim, "features of a value (default: head_dim)", at_least(1));
    f("norm", norm, "RMS norms of latents");
    f("norm_eps", norm_eps, "epsilon of the norms of latents", above(0));
    f("scale", scale, "factor on q k^T (default: (nope_dim + rope_dim)^-0.5)");
    f("bias", bias, "biases on q_down, kv_down, k_rope and o");
    f("q_bias", q_bias, "bias on q, or on q_up where queries have a latent");
  }
  HeadTraits traits() const override { return {.own_values = true}; }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override {
    const auto p = projections(shape);
    kv_rank = p.latent, nope_dim = p.content, rope_dim = p.rope, value_dim = p.value;
    if (!scale) scale = p.usual_scale();
  }
  LatentProjections projections(const HeadShape& s) const {
    return {.latent = kv_rank.value_or(4 * s.head_dim),
            .query_latent = q_rank,
            .content = nope_dim.value_or(s.head_dim),
            .rope = rope_dim.value_or(s.head_dim / 2),
            .value = value_dim.value_or(s.head_dim),
            .norm = norm,
            .norm_eps = norm_eps,
            .scale = scale,
            .q_bias = q_bias,
            .down_bias = bias,
            .o_bias = bias,
            .q_up_bias = q_bias};
  }
};

class Mla : public LatentHeads {
 public:
  using Options = MlaOptions;
  Mla(const HeadShape& shape, const Options& options)
      : LatentHeads(shape, options.traits(), options.projections(shape)) {}
};

const RegisterHeads<Mla> registered("mla",
                                    "keys and values of all heads from one latent of each token");

}  // namespace
}  // namespace headlab
