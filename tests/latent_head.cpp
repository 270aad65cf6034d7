// Heads in groups of the kind's own: two share a latent, which is the key and of which each group
// makes its value,
//   k_h = c_g,   v_h = c_g U_g,   c = x W_c,   g = h / 2,
// so that a group goes when both of its heads are gone. No window: latents are kept for good.
#include <cmath>

#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct LatentOptions : HeadOptions {
  HeadTraits traits() const override {
    return {.windows = false, .rotary = false, .inputs = false};
  }
};

class Latent : public AttentionHeads {
 public:
  using Options = LatentOptions;

  Latent(const HeadShape& s, const Options& options) : AttentionHeads(s, options.traits()) {
    const int64_t rows = group_heads("latents", s.heads / 2), d = s.head_dim;
    q_ = projection("q", s.d_model, s.heads * d, /*bias=*/false, rows_of_heads());
    latent_ = projection("latent", s.d_model, rows * d, /*bias=*/false, rows_of_group("latents"));
    value_ = parameter("value", at::eye(d).unsqueeze(1).repeat({1, rows, 1}),
                       {{.dim = 1, .group = "latents"}});  // [d,G,d]
    output_projection(s.heads * d, /*bias=*/false);
    init_projections({&q_, &latent_}, o_, s);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const int64_t rows = value_.size(1);
    const auto c = cached(
        call, "c", [&] { return split_heads(latent_(source(x, call)), rows, shape_.head_dim); });
    const auto v = at::matmul(c, value_.transpose(0, 1).to(c.scalar_type()));  // [B,G,S,d]
    const auto heads =
        attend(split_heads(q_(x), shape_.heads, shape_.head_dim), of_heads("latents", c),
               of_heads("latents", v), call, 1 / std::sqrt(shape_.head_dim));
    return {.y = output(heads, call)};  // [B,T,D]
  }

  Linear q_{nullptr}, latent_{nullptr};
  Tensor value_;
};

const RegisterHeads<Latent> latent("latent", "heads that share latents, two and two");

}  // namespace
}  // namespace headlab
