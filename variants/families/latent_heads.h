// Heads whose keys and values are made of latents, which are all that decoding keeps of a token
// beside a key for rotary positions that the heads share: what kinds of them have in common.
//
// B batch, T queries, S keys, D d_model, H heads, g latents of a token, c their width, n features
// of content of a query and key, r that turn, e width of a value. With RMS norms,
//   q = x q^T   or   (RMS(x q_down^T) q_norm) q_up^T         a head's n, then its r
//   L_u = RMS(m kv_down_u^T) kv_norm_u  [B,S,c]     R = rope(m k_rope^T)  [B,S,r]
//   z_h = scale (q_n (k_up_h L_u)^T + rope(q_r) R^T)
//   y = concat_h(softmax(z_h) (v_up_h L_u)) o^T
// Few queries meet the latents themselves (absorbed), many the keys that are made of them:
//   p_h = k_up_h^T q_n,   z_h = scale (p_h L_u^T + rope(q_r) R^T)
//   o_h = v_up_h (softmax(z_h) L_u)
#pragma once

#include "core/attention/layers.h"
#include "core/config/config.h"
#include "core/head_kinds.h"

namespace headlab {

struct LatentProjections {
  int64_t latent = 0, query_latent = 0, content = 0, rope = 0, value = 0;  // c, 0: none, n, r, e
  // Latents of a token, each of as many heads; default: one of all heads, which slices keep.
  std::optional<int64_t> groups = {};
  bool norm = true;  // of latents
  double norm_eps = 1e-6;
  std::optional<double> scale = {};  // default (n + r)^-0.5
  // On q, or on q_up where queries have a latent; q_down, kv_down and k_rope; k_up and v_up; o.
  bool q_bias = false, down_bias = false, up_bias = false, o_bias = false;

  double usual_scale() const;
};

// What all kinds of them leave open.
struct LatentOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> kv_rank, nope_dim, rope_dim, value_dim;
  double norm_eps = 1e-6;
  std::optional<double> scale;

  void visit(Fields& f) override;  // all but kv_rank
  HeadTraits traits() const override { return {.own_values = true}; }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override;
  virtual LatentProjections projections(const HeadShape& shape) const = 0;

 protected:
  // Of these options alone; `usual_latent`: the width of a latent where kv_rank is not written.
  LatentProjections widths(const HeadShape& shape, int64_t usual_latent) const;
};

class LatentHeads : public AttentionHeads {
 public:
  int64_t value_width() const override { return p_.value; }
  // Of content alone, and without the norms of latents.
  std::optional<HeadMatrices> matrices() const override;
  double flops(int64_t T, int64_t S, double pairs) const override;

 protected:
  // Initialised as the shape says; norms 1.
  LatentHeads(const HeadShape& shape, const HeadTraits& traits,
              const LatentProjections& projections);

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override;
  HeadOutput of_own_inputs(const Tensor& q, const Tensor& y, const HeadCall& call);
  RmsNorm norm(const char* name, int64_t features, const HeadAxes& axes);

  // What is kept of a token: [B,g,S,c] and [B,1,S,r].
  Tensor latents_of(const Tensor& y);
  Tensor turned_keys(const Tensor& y, const HeadCall& call);
  // The latents as heads read them: the g ones in turn, in a sliced layer one for each head.
  Tensor by_group(const Tensor& latents, const HeadCall& call) const;

  bool absorbs(int64_t T, int64_t S, const HeadCall& call) const;
  Tensor up(const Linear& linear, const Tensor& latents, int64_t width) const;
  Tensor full_keys(const Tensor& latents, const Tensor& turned) const;
  Tensor absorbed(const Tensor& content, const Tensor& turned, const Tensor& latents,
                  const Tensor& keys, const HeadCall& call) const;

  LatentProjections p_;
  double scale_;
  Linear q_down_{nullptr}, q_{nullptr}, kv_down_{nullptr}, k_rope_{nullptr}, k_up_{nullptr},
      v_up_{nullptr};
  RmsNorm q_norm_{nullptr}, kv_norm_{nullptr};
};

// Such heads with the options of a kind.
template <class KindOptions>
class HeadsOfLatents : public LatentHeads {
 public:
  using Options = KindOptions;
  HeadsOfLatents(const HeadShape& shape, const Options& options)
      : LatentHeads(shape, options.traits(), options.projections(shape)) {}
};

}  // namespace headlab
