// Kimi delta attention: Gated DeltaNet whose state decays by one rate for each feature of a key.
//
// "Kimi Linear: An Expressive, Efficient Attention Architecture", arXiv 2510.26692;
// fla-org/flash-linear-attention. Value head h of H reads the query and key of head h // (H / Hk):
//   u = silu(conv(x W^T)) for q, k, v       q = u_q / sqrt(|u_q|^2 + 1e-6), k likewise
//   b_t = sigmoid(x beta^T), twice that where eigenvalues may be negative
//   f = (x a_down^T) a_up^T + dt_bias  [H,d]
//   g = -e^{a_log} softplus(f);   with lower_bound l: g = l sigmoid(e^{a_log} f)
//   S_t = Diag(e^{g_t}) S_{t-1} + b_t k_t (v_t - (Diag(e^{g_t}) S_{t-1})^T k_t)^T  [d,dv]
//   o_t = scale S_t^T q_t
//   y = concat_h(RMS_dv(o) * norm * act((x gate_down^T) gate_up^T + bias)) o^T
#include <cmath>

#include "core/attention/precision.h"
#include "core/attention/recurrent/delta_rule.h"
#include "core/config/config.h"
#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct KdaOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> qk_heads, value_dim, rank;
  int64_t conv = 4;
  bool conv_bias = false, neg_eigval = false, gate_bias = true;
  std::string gate = "sigmoid";
  double norm_eps = 1e-5;
  std::optional<double> lower_bound, scale;

  void visit(Fields& f) override {
    f("qk_heads", qk_heads, "heads of queries and keys, which heads share (default: heads)",
      at_least(1));
    f("value_dim", value_dim, "features of a value (default: head_dim)", at_least(1));
    f("conv", conv, "tokens that a convolution of queries, keys and values spans; 0: none",
      at_least(0));
    f("conv_bias", conv_bias, "biases on the convolutions");
    f("gate", gate, "gate on each output feature of a head", one_of({"sigmoid", "silu", "none"}));
    f("gate_bias", gate_bias, "bias on the gate");
    f("rank", rank, "features that decays and gates are made from (default: value_dim)",
      at_least(1));
    f("lower_bound", lower_bound, "lower bound of log decays, below 0 (default: none)");
    f("neg_eigval", neg_eigval,
      "b up to 2, so that eigenvalues of a token's correction may be negative");
    f("norm_eps", norm_eps, "epsilon of the output norm", above(0));
    f("scale", scale, "factor on queries (default: head_dim^-0.5)");
  }
  HeadTraits traits() const override {
    HeadTraits t{.rows_sum_to_one = false, .masks = HeadMasks::kKeys, .bidirectional = false};
    t.windows = t.biases = t.cross = t.rotary = false;
    return t;
  }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override {
    qk_heads = qk_heads.value_or(shape.heads);
    value_dim = value_width(shape);
    if (!rank) rank = value_dim;
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
  }
  void check(const Complain& complain) const override {
    if (conv_bias && conv == 0) complain("conv_bias", "there is no convolution; turn on conv");
    if (lower_bound && *lower_bound >= 0) complain("lower_bound", "must be below 0");
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    if (qk_heads && shape.heads % *qk_heads != 0)
      complain("qk_heads", std::to_string(*qk_heads) + " do not divide " +
                               std::to_string(shape.heads) + " heads; choose a divisor");
  }
  int64_t value_width(const HeadShape& shape) const { return value_dim.value_or(shape.head_dim); }
};

// t ~ log-uniform in [0.001, 0.1], as softplus^-1(t).
Tensor first_dt_biases(int64_t n) {
  const auto t = at::empty({n}).uniform_(std::log(0.001), std::log(0.1)).exp();
  return t + (-at::expm1(-t)).log();
}

class Kda : public AttentionHeads {
 public:
  using Options = KdaOptions;

  Kda(const HeadShape& s, const Options& options)
      : AttentionHeads(s, options.traits()),
        options_(options),
        scale_(options.scale.value_or(1 / std::sqrt(s.head_dim))),
        value_width_(options.value_width(s)) {
    const int64_t D = s.d_model, H = s.heads, values = H * value_width_;
    const auto of_qk = rows_of_group("qk");
    qk_heads_ = group_heads("qk", options.qk_heads.value_or(H));
    const int64_t keys = qk_heads_ * s.head_dim;
    q_ = projection("q", D, keys, false, of_qk), k_ = projection("k", D, keys, false, of_qk);
    v_ = projection("v", D, values, false, rows_of_heads());
    beta_ = projection("beta", D, H, false, rows_of_heads());
    const int64_t rank = options.rank.value_or(value_width_), channels = H * s.head_dim;
    a_down_ = projection("a_down", D, rank, false, shared_by_heads());
    a_up_ = projection("a_up", rank, channels, false, rows_of_heads());
    if (options.gate != "none") {
      gate_down_ = projection("gate_down", D, rank, false, shared_by_heads());
      gate_up_ = projection("gate_up", rank, values, options.gate_bias, rows_of_heads());
    }
    init_projections({&q_, &k_, &v_}, output_projection(values, false), s);
    for (auto* linear : {&beta_, &a_down_, &a_up_, &gate_down_, &gate_up_})
      if (*linear) init_input(*linear, s);

    const auto rates = at::empty({H}).uniform_(1, 16).log();
    a_log_ = parameter("a_log", options.lower_bound ? at::zeros({H}) : rates, rows_of_heads());
    dt_bias_ = parameter("dt_bias", first_dt_biases(channels), rows_of_heads());
    if (const int64_t w = options.conv; w > 0) {  // begin as torch's convolutions: U(+-w^-0.5)
      q_conv_ = projection("q_conv", w, keys, options.conv_bias, of_qk);
      k_conv_ = projection("k_conv", w, keys, options.conv_bias, of_qk);
      v_conv_ = projection("v_conv", w, values, options.conv_bias, rows_of_heads());
    }
    norm_ = register_module("norm", RmsNorm(at::IntArrayRef{value_width_}, options.norm_eps));
    lay_out("norm.weight", shared_by_heads());
  }

  std::vector<Statistic> own_statistics() const override { return delta_statistics(); }
  int64_t value_width() const override { return value_width_; }

  // The state costs the same for each token, however many lie before it.
  double flops(int64_t T, int64_t /*S*/, double /*pairs*/) const override {
    double weights = 0;
    for (const auto& p : parameters()) weights += static_cast<double>(p.numel());
    const auto state = static_cast<double>(shape_.heads * shape_.head_dim * value_width_);
    return static_cast<double>(T) * (2 * weights + 7 * state);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const int64_t d = shape_.head_dim, H = shape_.heads, e = value_width_;
    if (H == 0) return {.y = output(x.new_zeros({x.size(0), 0, x.size(1), e}), call)};
    const VisibleTokens tokens(x, call);
    const auto make = [&](Input input, Linear& project, Linear& conv, int64_t heads, int64_t width,
                          const char* name) {
      return from_inputs(input, x, call, [&](const Tensor& from) {
        auto* taps = call.cache ? &call.cache->state(name) : nullptr;
        const auto p = split_heads(project(from), heads, width);
        const auto u = short_convolution(p, conv ? conv->weight : Tensor(),
                                         conv ? conv->bias : Tensor(), tokens, taps);
        return heads == H ? u : of_heads("qk", u);
      });
    };
    const auto unit = [](const Tensor& u) {
      return u * (u.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
    };
    const auto q = unit(make(Input::kQuery, q_, q_conv_, qk_heads_, d, "q"));  // [B,H,T,d]
    const auto k = unit(make(Input::kKey, k_, k_conv_, qk_heads_, d, "k"));    // [B,H,T,d]
    const auto v = make(Input::kValue, v_, v_conv_, H, e, "v");                // [B,H,T,dv]
    const auto& rest = rest_of(x, call);
    const auto beta = beta_(rest).to(q.scalar_type()).sigmoid() * (options_.neg_eigval ? 2 : 1);
    const auto o =
        attend_by_delta_rule({.q = q * scale_,
                              .k = k,
                              .v = v,
                              .beta = tokens.close_up(split_heads(beta, H, 1)),
                              .log_decay = tokens.close_up(log_decay(rest, q.scalar_type()))},
                             tokens, call);  // [B,H,T,dv]
    const auto normed = rms_norm(o, norm_->weight.to(o.scalar_type()), options_.norm_eps);
    return {.y = output(gated(normed, rest).to(x.scalar_type()), call)};
  }

  Tensor log_decay(const Tensor& x, at::ScalarType wide) {  // g [B,H,T,d]
    const int64_t H = shape_.heads, d = shape_.head_dim;
    const auto f =
        split_heads(a_up_(a_down_(x)), H, d).to(wide) + dt_bias_.to(wide).view({H, 1, d});
    const auto rate = a_log_.to(wide).exp().view({H, 1, 1});
    if (options_.lower_bound) return *options_.lower_bound * (rate * f).sigmoid();
    return -rate * at::softplus(f);
  }

  Tensor gated(const Tensor& o, const Tensor& x) {
    if (!gate_up_) return o;
    const auto gate =
        split_heads(gate_up_(gate_down_(x)), shape_.heads, value_width_).to(o.scalar_type());
    return o * (options_.gate == "silu" ? at::silu(gate) : gate.sigmoid());
  }

  const Options options_;
  double scale_;
  int64_t value_width_, qk_heads_ = 0;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr};
  Linear beta_{nullptr};                                        // D -> H
  Linear a_down_{nullptr}, a_up_{nullptr};                      // D -> rank -> H*d
  Linear gate_down_{nullptr}, gate_up_{nullptr};                // D -> rank -> H*dv
  Linear q_conv_{nullptr}, k_conv_{nullptr}, v_conv_{nullptr};  // weights [Hk*d,w], [H*dv,w]
  Tensor a_log_, dt_bias_;                                      // [H], [H*d]
  RmsNorm norm_{nullptr};
};

const RegisterHeads<Kda> registered("kda", "a state that decays by key feature and is corrected");

}  // namespace
}  // namespace headlab
