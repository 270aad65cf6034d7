// Gated DeltaNet: heads that keep a matrix instead of keys, which decays and is corrected token by
// token.
//
// Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464;
// fla-org/flash-linear-attention, and the linear layers of Qwen3-Next. Value head h of H reads the
// query and key of head h // (H / Hk).
//   u = silu(conv(x W^T)) for q, k, v       q = u_q / sqrt(|u_q|^2 + 1e-6), k likewise
//   b_t = sigmoid(x beta^T), twice that where eigenvalues may be negative
//   g_t = -exp(a_log) softplus(x a^T + dt_bias)
//   S_t = e^{g_t} S_{t-1} + b_t k_t (v_t - e^{g_t} S_{t-1}^T k_t)^T  [d,dv]
//   o_t = scale S_t^T q_t       y = concat_h(RMS_dv(o) * norm * act(x gate^T)) o^T
// variants/families/delta_heads.h has what does not depend on how the state decays.
#include "core/torch.h"
#include "variants/families/delta_heads.h"

namespace headlab {
namespace {

struct GatedDeltaNetOptions : DeltaOptions {
  GatedDeltaNetOptions() : DeltaOptions("silu") {}
  void visit(Fields& f) override {
    DeltaOptions::visit(f);
    f("gate", gate, "gate on each output feature of a head", one_of({"silu", "sigmoid", "none"}));
  }
};

class GatedDeltaNet : public DeltaHeads {
 public:
  using Options = GatedDeltaNetOptions;

  GatedDeltaNet(const HeadShape& s, const Options& options) : DeltaHeads(s, options) {
    const int64_t D = s.d_model, H = s.heads;
    a_ = projection("a", D, H, false, rows_of_heads());
    init_input(a_, s);
    if (options.gate != "none") {
      gate_ = projection("gate", D, H * value_width(), false, rows_of_heads());
      init_input(gate_, s);
    }
    a_log_ =
        parameter("a_log", at::empty({H}).uniform_(0, 16).clamp_min(1e-6).log(), rows_of_heads());
    dt_bias_ = parameter("dt_bias", first_dt_biases(H), rows_of_heads());
  }

 private:
  Tensor log_decay(const Tensor& x, at::ScalarType wide) override {
    const auto f = a_(x).to(wide) + dt_bias_.to(wide);  // [B,T,H]
    const auto g = -a_log_.to(wide).exp() * at::softplus(f);
    return split_heads(g, shape_.heads, 1);  // [B,H,T,1]
  }
  Tensor gate(const Tensor& x) override { return gate_ ? gate_(x) : Tensor(); }

  Linear a_{nullptr}, gate_{nullptr};  // D -> H, H*dv
  Tensor a_log_, dt_bias_;             // [H]
};

const RegisterHeads<GatedDeltaNet> registered("gated_deltanet",
                                              "a state that decays and is corrected, by head");

}  // namespace
}  // namespace headlab
