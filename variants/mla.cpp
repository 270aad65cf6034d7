// Multi-head latent attention: keys and values of all heads are made from one latent of each token,
// which is all that decoding has to keep, beside a key for rotary positions that the heads share.
//
// DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C (V3: arXiv 2412.19437). A query and a
// key have n features of content and r that turn. The latent has c features. Norms are RMS.
//   q = x Wq^T   or   (RMS(x q_down^T) q_norm) q_up^T         a head's n, then its r
//   L = RMS(m kv_down^T) kv_norm  [B,S,c]     R = rope(m k_rope^T)  [B,S,r]
//   z_h = scale (q_n (k_up_h L)^T + rope(q_r) R^T)     y = concat_h(softmax(z_h) (v_up_h L)) o^T
// variants/families/latent_heads.h computes them, with one latent of a token.
#include "variants/families/latent_heads.h"

namespace headlab {
namespace {

struct MlaOptions : LatentOptions {
  int64_t q_rank = 0;
  bool bias = false, q_bias = false, norm = true;

  void visit(Fields& f) override {
    f("kv_rank", kv_rank, "features of the latent (default: 4 head_dim)", at_least(1));
    f("q_rank", q_rank, "features of a latent that queries are made from; 0: none", at_least(0));
    LatentOptions::visit(f);
    f("norm", norm, "RMS norms of latents");
    f("bias", bias, "biases on q_down, kv_down, k_rope and o");
    f("q_bias", q_bias, "bias on q, or on q_up where queries have a latent");
  }
  LatentProjections projections(const HeadShape& shape) const override {
    auto p = widths(shape, 4 * shape.head_dim);
    p.query_latent = q_rank, p.norm = norm;
    p.q_bias = q_bias, p.down_bias = p.o_bias = bias;
    return p;
  }
};

const RegisterHeads<HeadsOfLatents<MlaOptions>> registered(
    "mla", "keys and values of all heads from one latent of each token");

}  // namespace
}  // namespace headlab
