// The Forgetting Transformer: a forget gate of each head and token weighs down what lies before it,
// which takes the place of positions.
//
// Lin et al., "Forgetting Transformer: Softmax Attention with a Forget Gate", arXiv 2503.02130;
// zhixuan-lin/forgetting-transformer. With one gate a head,
//   log f_t = logsigmoid(x_t forget^T + b)        c_t = log f_1 + ... + log f_t
//   A = softmax(scale q k^T + c_i - c_j)          from key j to query i: f_(j+1) ... f_i
//   o_h = A v      y = (RMS(o_h) norm_h act(x gate^T)) o^T      norm and gate where asked for
// and keys and values that may be mixed with those of the token before:
//   u'_t = alpha_t u_(t-1) + (1 - alpha_t) u_t,   alpha = sigmoid(x shift^T) of each token and
//   head.
//
// c_i - c_j is a product of two features, (c_i, 1) (1, -c_j)^T, beside those of q and k: so every
// path of attention serves, and no [T,S] is held of it.
#include <cmath>
#include <numbers>

#include "core/attention/precision.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct ForgettingOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::string forget = "full", output_gate = "none", qk_norm = "none";
  std::optional<double> time_min, time_max, scale;
  bool output_norm = false, k_shift = false, v_shift = false;
  double norm_eps = 1e-6, qk_norm_eps = 1e-5;

  void visit(Fields& f) override {
    f("forget", forget, "gates from each token; from their bias alone; from a bias that stays",
      one_of({"full", "bias_only", "fixed"}));
    f("time_min", time_min,
      "tokens after which the first head keeps 1/e at first (default: f = .5)", above(0));
    f("time_max", time_max, "and the last head, those between in a geometric row", above(0));
    f("output_gate", output_gate, "what multiplies each feature that a head says",
      one_of({"none", "sigmoid", "silu"}));
    f("output_norm", output_norm, "norm of what a head says, a weight of each head");
    f("norm_eps", norm_eps, "epsilon of output_norm", above(0));
    f("qk_norm", qk_norm, "norm of queries and keys before rope: a weight of each head, or one",
      one_of({"none", "per_head", "shared"}));
    f("qk_norm_eps", qk_norm_eps, "epsilon of qk_norm", above(0));
    f("k_shift", k_shift, "keys are mixed with those of the token before");
    f("v_shift", v_shift, "values likewise");
    f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
  }
  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void derive(const HeadShape& shape) override {
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
  }
  void check(const Complain& complain) const override {
    if (time_min.has_value() != time_max.has_value())
      complain(time_min ? "time_min" : "time_max", "times are given both or not at all");
    else if (time_min && *time_min > *time_max)
      complain("time_min", "is above time_max");
  }
  HeadTraits traits() const override {
    return {.bidirectional = false, .cross = false, .own_values = true};
  }
};

// half_life comes as the mean of -log f.
void finish_half_life(int64_t, LayerValues& values) {
  const auto found = values.find("half_life");
  if (found == values.end()) return;
  for (auto& value : found->second) value = std::numbers::ln2 / value;
}

// c [B,H,S,1] as numbers side by side that add up to it. Where products are of half types there are
// three, each of which they hold as it is: c may be large where differences are small.
Tensor summands(const Tensor& c, const Tensor& q) {
  if (!rounds(q)) return c;
  std::vector<Tensor> parts;
  for (auto rest = c; parts.size() < 3; rest = (rest - parts.back()).detach())
    parts.push_back(rest.to(at::kBFloat16).to(c.scalar_type()));
  return at::cat(parts, 3).to(q.scalar_type());  // [B,H,S,3]
}

class Forgetting : public QkvHeads {
 public:
  using Options = ForgettingOptions;

  Forgetting(const HeadShape& s, const Options& options)
      : QkvHeads(s, options.traits(), {.scale = options.scale}), options_(options) {
    const auto forget = register_module("forget", std::make_shared<torch::nn::Module>("forget"));
    if (options.forget == "full")
      forget_weight_ = forget->register_parameter("weight", at::randn({s.heads, s.d_model}) * 0.02);
    forget_bias_ = options.forget == "fixed" ? forget->register_buffer("bias", first_biases())
                                             : forget->register_parameter("bias", first_biases());
    for (const char* name : {"forget.weight", "forget.bias"}) lay_out(name, rows_of_heads());

    const int64_t width = s.heads * s.head_dim;
    const auto linear = [&](const char* name, int64_t out) {
      auto made = projection(name, s.d_model, out, false, rows_of_heads());
      init_input(made, s);
      return made;
    };
    if (options.output_gate != "none") gate_ = linear("gate", width);
    if (options.k_shift) k_shift_ = linear("k_shift", s.heads);
    if (options.v_shift) v_shift_ = linear("v_shift", s.heads);

    const auto norm = [&](const char* name, bool shared, double eps) {
      lay_out(std::string(name) + ".weight", shared ? shared_by_heads() : rows_of_heads());
      return register_module(name, RmsNorm(at::IntArrayRef{shared ? s.head_dim : width}, eps));
    };
    if (options.output_norm) norm_ = norm("norm", false, options.norm_eps);
    if (options.qk_norm == "none") return;
    const bool shared = options.qk_norm == "shared";
    q_norm_ = norm("q_norm", shared, options.qk_norm_eps);
    k_norm_ = norm("k_norm", shared, options.qk_norm_eps);
  }

  std::vector<Statistic> own_statistics() const override {
    auto half_life = head_statistic("half_life", "token", "tokens after which half is forgotten",
                                    "ln 2 / mean over tokens of -log f_{t,h}");
    half_life.finish = finish_half_life;
    return {head_statistic("forget_mean", "1", "forget gate", "mean over tokens of f_{t,h}"),
            half_life};
  }

  // Without gates and norms; keys and values that are mixed are of two tokens each.
  std::optional<HeadMatrices> matrices() const override {
    if (k_shift_ || v_shift_) return std::nullopt;
    return QkvHeads::matrices();
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    int64_t weights = forget_weight_.defined() ? forget_weight_.numel() : 0;
    for (const auto* linear : {&gate_, &k_shift_, &v_shift_})
      if (*linear) weights += (*linear)->weight.numel();
    return projected_flops(T, S, pairs) + 2.0 * static_cast<double>(T * weights);
  }

 private:
  // f^t = 1/e after t tokens: sigmoid(b) = exp(-1/t), so b = -ln(exp(1/t) - 1).
  Tensor first_biases() const {
    if (!options_.time_min) return at::zeros({shape_.heads});
    const auto rate = at::linspace(-std::log(*options_.time_min), -std::log(*options_.time_max),
                                   shape_.heads, at::kDouble)
                          .exp();                               // 1/t
    return -(rate + (-at::expm1(-rate)).log()).to(at::kFloat);  // exp(1/t) may overflow
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto& rest = rest_of(x, call);
    const auto log_f = log_gates(rest);  // [B,H,T]
    const auto q = from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
      return placed(q_norm_, split_heads(q_(from), shape_.heads), call);
    });
    const auto k = cached(call, "k", [&] {
      return from_inputs(Input::kKey, x, call, [&](const Tensor& from) {
        return placed(k_norm_, shifted("k", k_, k_shift_, from, call), call);
      });
    });
    const auto v = cached(call, "v", [&] {
      return from_inputs(Input::kValue, x, call, [&](const Tensor& from) {
        return shifted("v", v_, v_shift_, from, call);
      });
    });
    const auto c = cached(call, "c", [&] { return sums(log_f, call); });                // [B,H,S,1]
    const auto heads = normed(norm_, exclude_own(decayed(q, k, v, c, call), v, call));  // [B,H,T,d]
    if (call.observer) observe(log_f, k.size(2), call);
    if (!gate_) return {.y = output(heads, call)};  // [B,T,D]
    const auto gate = split_heads(gate_(rest), shape_.heads);
    const bool sigmoid = options_.output_gate == "sigmoid";
    return {.y = output(heads, call.with_gates(sigmoid ? gate.sigmoid() : at::silu(gate)))};
  }

  Tensor log_gates(const Tensor& x) const {
    const auto wide = at_least_float(x);
    if (forget_weight_.defined())
      return at::log_sigmoid(project(x, forget_weight_, forget_bias_).to(wide)).transpose(1, 2);
    const auto log_f = at::log_sigmoid(forget_bias_.to(wide));
    return log_f.view({1, -1, 1}).expand({x.size(0), -1, x.size(1)});
  }

  // c of the tokens of this pass, going on from those that the cache has seen.
  static Tensor sums(const Tensor& log_f, const HeadCall& call) {
    auto c = log_f.cumsum(2).unsqueeze(3);
    if (!call.cache) return c;
    auto& last = call.cache->state("c");
    if (last.defined()) c = c + last;
    last = c.narrow(2, c.size(2) - 1, 1).clone();
    return c;
  }

  static Tensor normed(RmsNorm& norm, const Tensor& x) {
    return norm && x.numel() > 0 ? norm(x) : x;
  }
  static Tensor placed(RmsNorm& norm, const Tensor& x, const HeadCall& call) {
    return rotate(normed(norm, x), call, call.positions);
  }

  Tensor shifted(const std::string& name, Linear& projection, Linear& shift, const Tensor& x,
                 const HeadCall& call) const {
    auto u = split_heads(projection(x), shape_.heads);  // [B,H,T,d]
    if (!shift) return u;
    const int64_t T = u.size(2);
    if (const auto hidden = hidden_tokens(call.mask.allowed, T); hidden.defined())
      u = u.masked_fill(hidden, 0);
    auto first = at::zeros_like(u.narrow(2, 0, 1));
    if (call.cache) {
      auto& last = call.cache->state(name);
      if (last.defined()) first = last;
      last = u.narrow(2, T - 1, 1).clone();
    }
    const auto before = at::cat({first, u.narrow(2, 0, T - 1)}, 2);
    const auto alpha = shift(x).sigmoid().transpose(1, 2).unsqueeze(3);  // [B,H,T,1]
    return alpha * before + (1 - alpha) * u;
  }

  // Which of the last T keys a mask hides from all queries and heads alike: [B or 1,1,T,1].
  static Tensor hidden_tokens(const Tensor& allowed, int64_t T) {
    if (!allowed.defined()) return {};
    for (int64_t dim : {2, 3})
      if (allowed.dim() >= dim && allowed.size(-dim) > 1) return {};
    const int64_t S = allowed.size(-1);
    const auto own = S == 1 ? allowed : allowed.narrow(-1, S - T, T);
    return own.logical_not().reshape({-1, 1, own.size(-1), 1});
  }

  Tensor decayed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& c,
                 const HeadCall& call) const {
    const int64_t T = q.size(2), S = k.size(2);
    const auto of_queries = c.narrow(2, S - T, T);
    const bool any_path = call.backend == Backend::kAuto || call.backend == Backend::kEager;
    if (call.cache && any_path && T < q.size(3)) {
      // Few queries: their biases are fewer than the features of all that was kept.
      auto biased = call;
      biased.bias = uniform_scores(of_queries - c.transpose(2, 3), call);  // [B,H,T,S]
      if (call.bias.defined()) biased.bias = biased.bias + call.bias;
      return attend(q, k, v, biased, scale());
    }
    const auto of_q = summands(of_queries, q), of_k = summands(c, q);
    return attend(at::cat({q * scale(), of_q, at::ones_like(of_q)}, 3),
                  at::cat({k, at::ones_like(of_k), -of_k}, 3), v, call, 1);
  }

  void observe(const Tensor& log_f, int64_t S, const HeadCall& call) const {
    if (!call.observer->wants_statistics()) return;
    at::NoGradGuard no_grad;
    const int64_t T = log_f.size(2);
    const auto map = log_f.unsqueeze(3).expand({-1, -1, -1, S});  // for its sizes
    const auto allowed = allowed_keys(call.mask, T, S, log_f.device());
    const auto counted = counted_pairs(map, allowed, call.mask).any(-1);  // [B,H,T]
    report_rows(*call.observer, "forget_mean", log_f.exp(), counted);
    report_rows(*call.observer, "half_life", -log_f, counted);
  }

  Options options_;
  Tensor forget_weight_, forget_bias_;  // [H,D], full; [H]
  Linear gate_{nullptr}, k_shift_{nullptr}, v_shift_{nullptr};
  RmsNorm norm_{nullptr}, q_norm_{nullptr}, k_norm_{nullptr};
};

const RegisterHeads<Forgetting> registered("forgetting",
                                           "forget gates weigh down what lies before a token");

}  // namespace
}  // namespace headlab
