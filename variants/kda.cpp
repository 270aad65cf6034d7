// Kimi delta attention: Gated DeltaNet whose state decays by one rate for each feature of a key.
//
// "Kimi Linear: An Expressive, Efficient Attention Architecture", arXiv 2510.26692;
// fla-org/flash-linear-attention. Queries, keys, b and outputs are those of Gated DeltaNet
// (variants/families/delta_heads.h).
//   f = (x a_down^T) a_up^T + dt_bias  [H,d]
//   g = -e^{a_log} softplus(f);   with lower_bound l: g = l sigmoid(e^{a_log} f)
//   S_t = Diag(e^{g_t}) S_{t-1} + b_t k_t (v_t - (Diag(e^{g_t}) S_{t-1})^T k_t)^T  [d,dv]
//   gate = (x gate_down^T) gate_up^T + bias
#include "core/torch.h"
#include "variants/families/delta_heads.h"

namespace headlab {
namespace {

struct KdaOptions : DeltaOptions {
  bool gate_bias = true;
  std::optional<int64_t> rank;
  std::optional<double> lower_bound;

  KdaOptions() : DeltaOptions("sigmoid") {}
  void visit(Fields& f) override {
    DeltaOptions::visit(f);
    f("gate", gate, "gate on each output feature of a head", one_of({"silu", "sigmoid", "none"}));
    f("gate_bias", gate_bias, "bias on the gate");
    f("rank", rank, "features that decays and gates are made from (default: value_dim)",
      at_least(1));
    f("lower_bound", lower_bound, "lower bound of log decays, below 0 (default: none)");
  }
  void derive(const HeadShape& shape) override {
    DeltaOptions::derive(shape);
    if (!rank) rank = value_dim;
  }
  void check(const Complain& complain) const override {
    DeltaOptions::check(complain);
    if (lower_bound && *lower_bound >= 0) complain("lower_bound", "must be below 0");
  }
};

class Kda : public DeltaHeads {
 public:
  using Options = KdaOptions;

  Kda(const HeadShape& s, const Options& options)
      : DeltaHeads(s, options), lower_bound_(options.lower_bound) {
    const int64_t D = s.d_model, H = s.heads, channels = H * s.head_dim;
    const int64_t rank = options.rank.value_or(value_width());
    a_down_ = projection("a_down", D, rank, false, shared_by_heads());
    a_up_ = projection("a_up", rank, channels, false, rows_of_heads());
    if (options.gate != "none") {
      gate_down_ = projection("gate_down", D, rank, false, shared_by_heads());
      gate_up_ = projection("gate_up", rank, H * value_width(), options.gate_bias, rows_of_heads());
    }
    for (auto* linear : {&a_down_, &a_up_, &gate_down_, &gate_up_})
      if (*linear) init_input(*linear, s);
    const auto rates = at::empty({H}).uniform_(1, 16).log();
    a_log_ = parameter("a_log", lower_bound_ ? at::zeros({H}) : rates, rows_of_heads());
    dt_bias_ = parameter("dt_bias", first_dt_biases(channels), rows_of_heads());
  }

 private:
  Tensor log_decay(const Tensor& x, at::ScalarType wide) override {  // [B,H,T,d]
    const int64_t H = shape_.heads, d = shape_.head_dim;
    const auto f =
        split_heads(a_up_(a_down_(x)), H, d).to(wide) + dt_bias_.to(wide).view({H, 1, d});
    const auto rate = a_log_.to(wide).exp().view({H, 1, 1});
    if (lower_bound_) return *lower_bound_ * (rate * f).sigmoid();
    return -rate * at::softplus(f);
  }
  Tensor gate(const Tensor& x) override { return gate_up_ ? gate_up_(gate_down_(x)) : Tensor(); }

  std::optional<double> lower_bound_;
  Linear a_down_{nullptr}, a_up_{nullptr};        // D -> rank -> H*d
  Linear gate_down_{nullptr}, gate_up_{nullptr};  // D -> rank -> H*dv
  Tensor a_log_, dt_bias_;                        // [H], [H*d]
};

const RegisterHeads<Kda> registered("kda", "a state that decays by key feature and is corrected");

}  // namespace
}  // namespace headlab
