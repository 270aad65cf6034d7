// Multi-head latent attention: keys and values of all heads are made from one latent of each token,
// which is all that decoding has to keep, beside a key for rotary positions that the heads share.
//
// DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C (V3: arXiv 2412.19437). With n features
// of content and r that turn, c of the latent, RMS norms,
//   q = x Wq^T   or   (RMS(x q_down^T) q_norm) q_up^T         a head's n, then its r
//   L = RMS(m kv_down^T) kv_norm  [B,S,c]     R = rope(m k_rope^T)  [B,S,r]
//   z_h = scale (q_n (k_up_h L)^T + rope(q_r) R^T)     y = concat_h(softmax(z_h) (v_up_h L)) o^T
// Few queries meet the latents themselves (absorbed), many the keys that are made of them:
//   p_h = k_up_h^T q_n,   z_h = scale (p_h L^T + rope(q_r) R^T),   o_h = v_up_h (softmax(z_h) L)
#include <cmath>

#include "core/attention/layers.h"
#include "core/attention/precision.h"
#include "core/attention/weight_dropout.h"
#include "core/config/config.h"
#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Where the options leave them to the shape.
struct MlaWidths {
  int64_t latent, query_latent, content, rope, value;  // c, 0 for none, n, r, dv
};

struct MlaOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> kv_rank, nope_dim, rope_dim, value_dim;
  int64_t q_rank = 0;
  double norm_eps = 1e-6;
  std::optional<double> scale;
  bool bias = false;

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
    f("norm_eps", norm_eps, "epsilon of the norms of latents", above(0));
    f("scale", scale, "factor on q k^T (default: (nope_dim + rope_dim)^-0.5)");
    f("bias", bias, "biases on q_down, kv_down, k_rope and o");
  }
  HeadTraits traits() const override { return {.own_values = true}; }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override {
    const auto w = widths(shape);
    kv_rank = w.latent, nope_dim = w.content, rope_dim = w.rope, value_dim = w.value;
    if (!scale) scale = usual_scale(w);
  }
  static double usual_scale(const MlaWidths& w) {
    return 1 / std::sqrt(static_cast<double>(w.content + w.rope));
  }
  MlaWidths widths(const HeadShape& s) const {
    return {kv_rank.value_or(4 * s.head_dim), q_rank, nope_dim.value_or(s.head_dim),
            rope_dim.value_or(s.head_dim / 2), value_dim.value_or(s.head_dim)};
  }
};

class Mla : public AttentionHeads {
 public:
  using Options = MlaOptions;

  Mla(const HeadShape& s, const Options& options)
      : AttentionHeads(s, options.traits()),
        w_(options.widths(s)),
        scale_(options.scale.value_or(Options::usual_scale(w_))) {
    const int64_t H = s.heads, width = w_.content + w_.rope;
    const bool bias = options.bias;
    const auto norm = [&](const char* name, int64_t features) {
      lay_out(std::string(name) + ".weight", shared_by_heads());
      return register_module(name, RmsNorm(at::IntArrayRef{features}, options.norm_eps));
    };
    if (w_.query_latent > 0) {
      q_down_ = projection("q_down", s.d_model, w_.query_latent, bias, shared_by_heads());
      q_norm_ = norm("q_norm", w_.query_latent);
      q_ = projection("q_up", w_.query_latent, H * width, false, rows_of_heads());
    } else {
      q_ = projection("q", s.d_model, H * width, false, rows_of_heads());
    }
    kv_down_ = projection("kv_down", s.d_model, w_.latent, bias, shared_by_heads());
    if (w_.rope > 0) k_rope_ = projection("k_rope", s.d_model, w_.rope, bias, shared_by_heads());
    kv_norm_ = norm("kv_norm", w_.latent);
    k_up_ = projection("k_up", w_.latent, H * w_.content, false, rows_of_heads());
    v_up_ = projection("v_up", w_.latent, H * w_.value, false, rows_of_heads());
    output_projection(H * w_.value, bias);
    for (auto* linear : {&q_down_, &q_, &kv_down_, &k_rope_, &k_up_, &v_up_})
      if (*linear) init_input(*linear, s);
    init_output(o_, s);
  }

  int64_t value_width() const override { return w_.value; }

  // Of content alone, and without the norms of latents.
  std::optional<HeadMatrices> matrices() const override {
    const int64_t D = shape_.d_model, H = shape_.heads;
    auto q = q_->weight.detach();
    if (q_down_) q = q.mm(q_down_->weight.detach());
    const auto down = kv_down_->weight.detach();  // [c,D]
    const auto of_heads = [&](const Tensor& up, int64_t width) {
      return at::matmul(up.detach().view({H, width, w_.latent}), down);  // [H,width,D]
    };
    return HeadMatrices{.q = q.view({H, w_.content + w_.rope, D}).narrow(1, 0, w_.content),
                        .k = of_heads(k_up_->weight, w_.content),
                        .v = of_heads(v_up_->weight, w_.value),
                        .o = o_->weight.detach().view({D, H, w_.value}).transpose(0, 1)};
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto numel = [](const Linear& l) {
      return l ? static_cast<double>(l->weight.numel()) : 0.0;
    };
    const auto width = static_cast<double>(w_.content + w_.rope + w_.value);
    return 2.0 * T * (numel(q_down_) + numel(q_) + numel(o_)) +
           2.0 * S * (numel(kv_down_) + numel(k_rope_) + numel(k_up_) + numel(v_up_)) +
           2 * pairs * static_cast<double>(shape_.heads) * width;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
      return split_heads(q_(q_down_ ? q_norm_(q_down_(from)) : from), shape_.heads,
                         w_.content + w_.rope);
    });  // [B,H,T,n+r]
    const auto content = q.narrow(3, 0, w_.content);
    const auto turned = rotate(q.narrow(3, w_.content, w_.rope), call, call.positions);
    const auto& y = source(x, call);
    if (call.inputs) return {.y = of_own_inputs(at::cat({content, turned}, 3), y, call)};
    const auto latents = cached(call, "latent", [&] { return latents_of(y); });  // [B,1,S,c]
    Tensor keys;
    if (k_rope_) keys = cached(call, "rope", [&] { return turned_keys(y, call); });  // [B,1,S,r]
    const auto heads = absorbs(x.size(1), latents.size(2), call)
                           ? absorbed(content, turned, latents, keys, call)
                           : expanded(content, turned, latents, keys, call);   // [B,H,T,dv]
    if (!call.shaping.exclusion.defined()) return {.y = output(heads, call)};  // [B,T,D]
    return {.y = output(heads, up(v_up_, latents, w_.value), call)};
  }

  Tensor latents_of(const Tensor& y) { return kv_norm_(kv_down_(y)).unsqueeze(1); }
  Tensor turned_keys(const Tensor& y, const HeadCall& call) {
    return rotate(k_rope_(y).unsqueeze(1), call, key_positions(call));
  }

  // Each head's latents are of its own copies: [B,T,D].
  Tensor of_own_inputs(const Tensor& q, const Tensor& y, const HeadCall& call) {
    const auto k = from_inputs(Input::kKey, y, call, [&](const Tensor& from) {
      return full_keys(latents_of(from), k_rope_ ? turned_keys(from, call) : Tensor());
    });  // [B,H,S,n+r]
    const auto v = from_inputs(Input::kValue, y, call, [&](const Tensor& from) {
      return up(v_up_, latents_of(from), w_.value);
    });  // [B,H,S,dv]
    return output(attend(q, k, v, call, scale_), v, call);
  }

  // Whether the latents meet the queries with fewer operations than keys and values are made from
  // them. An observer sees values, and a fused path is asked for by heads: both want these.
  bool absorbs(int64_t T, int64_t S, const HeadCall& call) const {
    if (call.observer || (call.backend != Backend::kAuto && call.backend != Backend::kEager))
      return false;
    const int64_t ups = w_.latent * (w_.content + w_.value), r = w_.rope;
    return T * ups + T * S * (2 * w_.latent + r) < S * ups + T * S * (w_.content + r + w_.value);
  }

  Tensor up(const Linear& linear, const Tensor& latents, int64_t width) const {
    return split_heads(project(latents.squeeze(1), linear->weight), shape_.heads,
                       width);  // [B,H,S,width]
  }
  Tensor matrices_of(const Linear& linear, int64_t width) const {
    return linear->weight.view({shape_.heads, width, w_.latent});  // [H,width,c]
  }

  Tensor expanded(const Tensor& content, const Tensor& turned, const Tensor& latents,
                  const Tensor& keys, const HeadCall& call) const {
    const auto q = keys.defined() ? at::cat({content, turned}, 3) : content;
    return attend(q, full_keys(latents, keys), up(v_up_, latents, w_.value), call, scale_);
  }
  Tensor full_keys(const Tensor& latents, const Tensor& keys) const {
    const auto k = up(k_up_, latents, w_.content);
    return keys.defined() ? at::cat({k, keys.expand({-1, shape_.heads, -1, -1})}, 3) : k;
  }

  // All heads have the same keys and values, the latents: their queries are rows of one product.
  Tensor absorbed(const Tensor& content, const Tensor& turned, const Tensor& latents,
                  const Tensor& keys, const HeadCall& call) const {
    const int64_t T = content.size(2);
    const auto wide = at_least_float(content);
    const auto rows = [](const Tensor& t) { return t.flatten(1, 2); };   // [B,H,T,.] -> [B,HT,.]
    const auto L = latents.squeeze(1);                                   // [B,S,c]
    const auto p = at::matmul(content, matrices_of(k_up_, w_.content));  // [B,H,T,c]
    const auto products = [&](const Tensor& of_queries, const Tensor& of_keys) {
      const WithoutAutocast exact;
      return at::matmul(rows(of_queries).to(wide) * scale_, of_keys.to(wide).transpose(1, 2));
    };
    auto z = products(p, L);  // [B,HT,S]
    if (keys.defined()) z = z + products(turned, keys.squeeze(1));
    z = add_biases(z.unflatten(1, {shape_.heads, T}), call);  // [B,H,T,S]
    const auto a = masked_softmax(z, allowed_keys(call.mask, T, L.size(1), L.device()));
    const auto kept = dropout(a, weight_dropout(call.dropout, call.rng));
    const auto sums = at::matmul(rows(kept).to(L.scalar_type()), L);  // [B,HT,c]
    return at::matmul(sums.unflatten(1, {shape_.heads, T}),
                      matrices_of(v_up_, w_.value).transpose(1, 2));  // [B,H,T,dv]
  }

  MlaWidths w_;
  double scale_;
  Linear q_down_{nullptr}, q_{nullptr}, kv_down_{nullptr}, k_rope_{nullptr}, k_up_{nullptr},
      v_up_{nullptr};
  RmsNorm q_norm_{nullptr}, kv_norm_{nullptr};
};

const RegisterHeads<Mla> registered("mla",
                                    "keys and values of all heads from one latent of each token");

}  // namespace
}  // namespace headlab
