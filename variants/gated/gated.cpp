// Learned gates on the outputs of heads of any other kind: y = concat_h(g_h o_h) W_O + b_O.
//
// hard_concrete: one gate a head, open or shut, with a penalty on the open ones. Louizos et al.,
// arXiv 1712.01312; Voita et al., arXiv 1905.09418 (lena-voita/the-story-of-heads):
//   train  s = sigmoid((ln u - ln(1 - u) + log_alpha) / temperature),  u ~ U(eps, 1 - eps) a head
//   eval   s = sigmoid(log_alpha)
//   g = clip(s (zeta - gamma) + gamma, 0, 1)
//   loss = penalty sum_h p_open,  p_open = sigmoid(log_alpha - temperature ln(-gamma / zeta))
// With a target number of heads the model forms the loss instead, over all its layers.
// sigmoid: gates that each token sets by itself (token_gates.h). Qiu et al., arXiv 2505.06708:
//   g = sigmoid(x gate.weight^T + gate.bias)
#include <fmt/format.h>

#include <cmath>

#include "core/gate_target.h"
#include "core/torch.h"
#include "core/wrapped_heads.h"
#include "variants/gated/token_gates.h"

namespace headlab {
namespace {

// g = clip(s (zeta - gamma) + gamma, 0, 1).
Tensor stretched_gates(const Tensor& logit, const HardConcrete& gate) {
  return (at::sigmoid(logit) * (gate.zeta - gate.gamma) + gate.gamma).clamp(0, 1);
}

// P(g = 1) > P(g = 0).
Tensor likelier_open(const Tensor& log_alpha, const HardConcrete& gate) {
  const auto open =
      at::sigmoid(log_alpha - gate.temperature * std::log((1 - gate.gamma) / (gate.zeta - 1)));
  const auto shut =
      1 - at::sigmoid(log_alpha - gate.temperature * std::log(-gate.gamma / gate.zeta));
  return open > shut;
}

class Gated : public WrappedHeads {
 public:
  struct Options : WrapperOptions {
    std::string gate = "hard_concrete", test_gate = "clipped";
    TokenGateOptions of_tokens;
    bool hard = false;
    HardConcrete concrete;
    double penalty = 1, init = 2.5, clamp = 4.605;
    GateTarget target;

    Options() : WrapperOptions("mha") {}
    void visit(Fields& f) override {
      f("inner", inner,
        "kind of the heads that are gated, with its options; init_weights of gated is theirs, too");
      f("gate", gate, "a gate a head that opens or shuts, or one that every token sets by itself",
        one_of({"hard_concrete", "sigmoid"}));
      of_tokens.visit(f);
      f("temperature", concrete.temperature, "hard_concrete: lower is nearer to 0 and 1", above(0));
      f("gamma", concrete.gamma, "hard_concrete: lower end of the stretched interval, below 0");
      f("zeta", concrete.zeta, "hard_concrete: its upper end, above 1", above(1));
      f("eps", concrete.eps, "hard_concrete: distance of the noise and of p_open from 0 and 1",
        between(1e-12, 0.1));
      f("hard", hard, "hard_concrete: gates of 0 or 1, with the gradient of the soft ones");
      f("test_gate", test_gate,
        "hard_concrete in evaluation: the clipped value, or the likelier "
        "of 0 and 1",
        one_of({"clipped", "argmax"}));
      f("penalty", penalty, "hard_concrete: loss of an open head", at_least(0));
      f("init", init, "hard_concrete: log_alpha before training, plus N(0, 0.01)");
      f("clamp", clamp, "hard_concrete: log_alpha stays within +-clamp; 0: no limit", at_least(0));
      f("target", target, "hard_concrete: heads to end with; then no penalty applies");
    }
    HeadTraits traits() const override {
      auto traits = WrapperOptions::traits();
      if (of_tokens.shared == "scores") traits.independent = false;
      return traits;
    }
    void check(const Complain& complain) const override {
      of_tokens.check(WrapperOptions::traits(), inner.kind(), gate == "sigmoid", complain);
      if (concrete.gamma >= 0) complain("gamma", "must be below 0, or no gate ever shuts");
      if (gate == "sigmoid" && target.is_set()) complain("target", "needs gate: hard_concrete");
    }
    void check_shape(const HeadShape& shape, const HeadDemands& demands,
                     const Complain& complain) const override {
      WrapperOptions::check_shape(shape, demands, complain);
      if (WrapperOptions::gate_target()) complain("inner.target", "belongs to the outer gates");
      if (of_tokens.input_dims > shape.d_model)
        complain("input_dims", fmt::format("must be at most {}, the width of the input; is {}",
                                           shape.d_model, of_tokens.input_dims));
      if (target.by_layer() && target.heads.value_or(0) > shape.heads)
        complain("target.heads", fmt::format("must be at most {}, the heads of a layer; is {}",
                                             shape.heads, *target.heads));
    }
    const GateTarget* gate_target() const override { return target.is_set() ? &target : nullptr; }
  };

  Gated(const HeadShape& shape, const Options& options)
      : WrappedHeads(shape, options), options_(options) {
    if (options.gate == "sigmoid") {
      const auto& gates = options.of_tokens;
      const int64_t n = gates.input_dims > 0 ? gates.input_dims : shape.d_model;
      projection_ = projection("gate", n, gates.heads(shape) * gates.width(shape, value_width()),
                               gates.bias, gates.axes());
      init_normal(projection_, 0.02);
    } else {
      auto gate = register_module("gate", std::make_shared<torch::nn::Module>("gate"));
      log_alpha_ =
          gate->register_parameter("log_alpha", options.init + 0.01 * at::randn({shape.heads}));
      lay_out("gate.log_alpha", heads_along({0}));
    }
  }

  std::vector<Statistic> own_statistics() const override {
    auto own = WrappedHeads::own_statistics();
    own.push_back(head_statistic("gate", "1", "gate of the head", "mean over tokens of g_h"));
    if (projection_)
      own.push_back(head_statistic("gate_low", "1", "share of gates that are nearly shut",
                                   "share of tokens, and of elements of the head, with g < 0.1"));
    if (!log_alpha_.defined()) return own;
    own.push_back(head_statistic("log_alpha", "1", "log alpha of the gate", "log_alpha_h"));
    own.push_back(head_statistic(
        "p_open", "1", "probability that the gate is open",
        "sigmoid(log_alpha_h - temperature ln(-gamma / zeta)), within eps of 0 and 1"));
    return own;
  }

  std::vector<std::string> aux_names() const override {
    auto names = WrappedHeads::aux_names();
    if (penalised()) names.push_back("gates");
    return names;
  }

  void parameter_groups(ParameterGroups& groups) override {
    WrappedHeads::parameter_groups(groups);
    if (log_alpha_.defined()) groups.gates.push_back(log_alpha_);
  }

  void after_step() override {
    WrappedHeads::after_step();
    if (log_alpha_.defined() && options_.clamp > 0)
      log_alpha_.data().clamp_(-options_.clamp, options_.clamp);
  }

  LearnedGates learned_gates() const override {
    if (!log_alpha_.defined()) return {};
    const auto plan = slice_plan(alive());
    auto log_alpha = wide_log_alpha();
    if (std::ssize(plan.rows) < shape_.heads)
      log_alpha =
          log_alpha.index_select(0, at::tensor(plan.rows, at::kLong).to(log_alpha.device()));
    const auto clipped = stretched_gates(log_alpha.detach(), options_.concrete);
    return {.heads = plan.ids,
            .log_alpha = log_alpha.detach(),
            .open = p_open(log_alpha, options_.concrete),
            .clipped = clipped,
            .test = test_gates(log_alpha.detach()),
            .target = options_.gate_target()};
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    if (projection_) return gated_by_tokens(x, call);
    const auto g = hard_concrete_gates(call);  // [1,H,1]
    auto out = run_inner(x, call.with_gates(g));
    out.gates = g.transpose(1, 2).expand({x.size(0), x.size(1), -1});  // [B,T,H]
    if (penalised()) {
      auto open = p_open(wide_log_alpha(), options_.concrete);
      if (call.alive.defined()) open = open.masked_fill(call.alive.logical_not(), 0);
      out.aux.push_back({"gates", options_.penalty * open.sum(), OverLayers::kSum});
    }
    if (call.observer) report(*call.observer, g, call);
    return out;
  }

  HeadOutput gated_by_tokens(const Tensor& x, const HeadCall& call) {
    const auto& gates = options_.of_tokens;
    const auto& from = gates.of_source() ? rest_of_source(x, call) : rest_of(x, call);
    const auto made = projection_(from.narrow(2, 0, projection_->weight.size(1)));
    const auto s = token_gates(gates, made, gates.heads(shape_), alive_of_gates(call));
    auto out = run_inner(x, gates.of_layer() ? call : with_token_gates(gates, s, call));
    if (gates.of_layer()) {
      const auto of_layer = s.squeeze(1);  // [B,T,D]
      out.y = gates.additive ? out.y + of_layer : out.y * of_layer;
    }
    out.gates = Tensor();
    // Of a layer that is sliced or masked those of keys and values are not told.
    const bool whole = !call.alive.defined() && !call.head_ids.defined();
    if (!gates.by_element() && (whole || !gates.of_source()))
      out.gates = of_query_heads(s, call, !gates.of_source()).squeeze(3).transpose(1, 2);
    if (call.observer) report(*call.observer, of_query_heads(s, call, true), call);
    return out;
  }

  // Which rows of gates belong to a head that is alive; undefined: all.
  Tensor alive_of_gates(const HeadCall& call) const {
    if (!call.alive.defined() || !options_.of_tokens.of_source()) return call.alive;
    const auto rows = kv_heads(call.kv_map, shape_.heads, shape_.kv_heads, call.alive.device());
    const auto count = at::zeros({shape_.kv_heads}, rows.options());
    return count.index_add(0, rows, call.alive.to(at::kLong)) > 0;
  }

  // s [B,n,T,w]: of each query head the gate that concerns it, or of n alike what there is.
  Tensor of_query_heads(const Tensor& s, const HeadCall& call, bool of_queries) const {
    const int64_t n = s.size(1), H = shape_.heads;
    if (n == 1) return s.expand({-1, of_queries ? H : shape_.kv_heads, -1, -1});
    if (!of_queries || n == H) return s;
    return s.index_select(1, kv_heads(call.kv_map, H, n, s.device()));
  }

  bool penalised() const {
    return log_alpha_.defined() && options_.penalty > 0 && !options_.target.is_set();
  }

  // [1,H,1]; in float32 at least: in bfloat16 1 - eps is 1.
  Tensor hard_concrete_gates(const HeadCall& call) const {
    const auto log_alpha = wide_log_alpha();
    if (!is_training()) return test_gates(log_alpha).view({1, -1, 1});
    const auto u = noise(call).to(log_alpha.options());
    const auto logit = (u.log() - at::log1p(-u) + log_alpha) / options_.concrete.temperature;
    return hardened(stretched_gates(logit, options_.concrete)).view({1, -1, 1});
  }

  Tensor test_gates(const Tensor& log_alpha) const {  // [H]
    if (options_.test_gate == "argmax")
      return likelier_open(log_alpha, options_.concrete).to(log_alpha.scalar_type());
    return hardened(stretched_gates(log_alpha, options_.concrete));
  }

  // With `hard` 0 or 1, and the gradient of the soft gate.
  Tensor hardened(const Tensor& g) const {
    return options_.hard ? g + ((g > 0.5).to(g.scalar_type()) - g).detach() : g;
  }

  // One draw a head and pass, the same whether other heads were sliced away or not: [H].
  Tensor noise(const HeadCall& call) const {
    if (call.noise.defined()) return call.noise;
    const auto device = log_alpha_.device();
    auto u = at::rand({heads()}, call.rng.generator(CounterRng::kGateNoise, device),
                      wide_log_alpha().options().requires_grad(false));
    if (call.head_ids.defined()) u = u.index_select(0, call.head_ids);
    const double eps = options_.concrete.eps;
    return eps + (1 - 2 * eps) * u;
  }

  Tensor wide_log_alpha() const {
    return log_alpha_.scalar_type() == at::kDouble ? log_alpha_ : log_alpha_.to(at::kFloat);
  }

  void report(HeadObserver& observer, const Tensor& g, const HeadCall& call) const {
    if (!observer.wants_statistics()) return;
    const auto of_token = [](const Tensor& t) {  // [B or 1,H,T or 1(,e)] -> [B or 1,T or 1,H]
      const auto wide = t.to(at::kDouble);
      return (wide.dim() == 4 ? wide.mean(3) : wide).transpose(1, 2);
    };
    auto counts = at::ones_like(of_token(g));
    const auto& length = projection_ && options_.of_tokens.of_source() ? call.mask.key_length
                                                                       : call.mask.query_length;
    if (length.defined() && counts.size(1) > 1)
      counts = counts * within_length(length, counts.size(1), g.device()).unsqueeze(2);
    const auto mean = [&](const char* name, const Tensor& values) {
      const std::vector<int64_t> tokens{0, 1};
      observer.report(name, (of_token(values) * counts).sum(tokens), counts.sum(tokens));
    };
    mean("gate", g);
    if (projection_) mean("gate_low", g < 0.1);
    if (!log_alpha_.defined()) return;
    const auto one = at::ones({shape_.heads});
    observer.report("log_alpha", log_alpha_, one);
    observer.report("p_open", p_open(wide_log_alpha(), options_.concrete), one);
  }

  Options options_;
  Linear projection_{nullptr};  // gate: sigmoid
  Tensor log_alpha_;            // [H], gate: hard_concrete
};

const RegisterHeads<Gated> registered("gated", "learned gates on the heads of any other kind");

}  // namespace
}  // namespace headlab
