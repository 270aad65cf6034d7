// Heads that keep a state by the gated delta rule (variants/families/delta_rule.h): what
// kinds of them have in common. A kind says how fast the state decays, and what gates the outputs.
//
// B batch, T tokens, D d_model, H heads, Hk heads of queries and keys, d head_dim, e width of a
// value. Head h reads the query and key of head h // (H / Hk):
//   u = silu(conv(x W^T)) for q, k, v       q = u_q / sqrt(|u_q|^2 + 1e-6), k likewise
//   b_t = sigmoid(x beta^T), twice that where eigenvalues may be negative
//   o_t = scale S_t^T q_t       y = concat_h(RMS(o) * norm * act(gate)) o^T
#pragma once

#include "core/config/config.h"
#include "core/head_kinds.h"

namespace headlab {

struct DeltaOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> qk_heads, value_dim;
  int64_t conv = 4;
  bool conv_bias = false, neg_eigval = false;
  std::string gate;  // activation of the gate on outputs; a kind says which there are
  double norm_eps = 1e-5;
  std::optional<double> scale;

  explicit DeltaOptions(const char* usual_gate) : gate(usual_gate) {}
  void visit(Fields& f) override;
  HeadTraits traits() const override;
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override;
  void check(const Complain& complain) const override;
  void check_shape(const HeadShape& shape, const HeadDemands& demands,
                   const Complain& complain) const override;
  int64_t value_width(const HeadShape& shape) const { return value_dim.value_or(shape.head_dim); }
};

class DeltaHeads : public AttentionHeads {
 public:
  std::vector<Statistic> own_statistics() const override;
  int64_t value_width() const override { return value_width_; }
  double flops(int64_t T, int64_t S, double pairs) const override;

 protected:
  // All but what log_decay() and gate() read. Initialised as the shape says; convolutions as
  // torch's, norms 1.
  DeltaHeads(const HeadShape& shape, const DeltaOptions& options);

  // g <= 0 of x [B,T,D] in the type `wide`: [B,H,T,1], or [B,H,T,d] of each key feature.
  virtual Tensor log_decay(const Tensor& x, at::ScalarType wide) = 0;
  // What the outputs are gated by, before its activation: [B,T,H*e]; undefined: nothing.
  virtual Tensor gate(const Tensor& x) = 0;

  // t ~ log-uniform in [0.001, 0.1], as softplus^-1(t): [n].
  static Tensor first_dt_biases(int64_t n);

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override;

  int64_t value_width_, qk_heads_ = 0;
  double scale_, norm_eps_, largest_beta_;
  bool gates_by_silu_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, beta_{nullptr};
  Linear q_conv_{nullptr}, k_conv_{nullptr}, v_conv_{nullptr};  // weights [Hk*d,w], [H*e,w]
  RmsNorm norm_{nullptr};
};

}  // namespace headlab
