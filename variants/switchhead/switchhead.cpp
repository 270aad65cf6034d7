// SwitchHead: few wide heads, each with several matrices of values and of outputs, of which a token
// uses the K that its router scores highest.
//
// Csordas, Piekos, Irie, Schmidhuber, "SwitchHead: Accelerating Transformers with
// Mixture-of-Experts Attention", arXiv 2312.07987; RobertCsordas/switchhead. Of E experts a head,
//   s = sigmoid(m router.v^T) [B,S,H,E],  r = sigmoid(x router.o^T) [B,T,H,E]
//   v_h = sum_{e in V} s_e W_v^{h,e} m,   V the K largest of the key's s
//   y = sum_h sum_{e in O} r_e W_o^{h,e} softmax(q_h k_h^T / sqrt d) v_h,   O of the query's r
// Sigmoids do not compete and are not normalised; equal ones: the lower expert. With one expert
// values are plain, and r is a gate of the head.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/attention/precision.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/switchhead/chosen_experts.h"

namespace headlab {
namespace {

struct SwitchheadOptions : HeadOptions, DerivedDefaults<HeadShape> {
  int64_t experts = 4;
  std::optional<int64_t> active;
  double expert_dropout = 0;
  std::optional<double> scale;

  void visit(Fields& f) override {
    f("experts", experts, "matrices of values, and of outputs, of each head", at_least(1));
    f("active", active, "experts that a head uses for a token (default: 2, of one expert 1)",
      at_least(1));
    f("expert_dropout", expert_dropout,
      "probability in training that a token cannot choose an expert", from_below(0, 1));
    f("scale", scale, "factor on q k^T (default: head_dim^-0.5)");
  }
  HeadTraits traits() const override { return {.own_values = true}; }
  void check(const Complain& complain) const override {
    if (active_of_head() > experts)
      complain("active", std::to_string(active_of_head()) + " active of " +
                             std::to_string(experts) + " experts; choose at most that many");
  }
  void derive(const HeadShape& shape) override {
    active = active_of_head();
    if (!scale) scale = 1 / std::sqrt(shape.head_dim);
  }
  std::optional<InitDifferences> init_differences() const override {
    return InitDifferences{{"q, k, v", "N(0, (layers d_model)^-0.5)", "as plain heads"},
                           {"o", "N(0, (layers heads head_dim)^-0.5)", "as plain heads"}};
  }
  int64_t active_of_head() const { return active.value_or(std::min<int64_t>(2, experts)); }
  Projections projections(const HeadShape& shape) const {
    return {.v_width = experts * shape.head_dim, .scale = scale};
  }
};

// That of selected / sum selected over ln E, the mean of values and outputs.
void finish_expert_entropy(int64_t heads, LayerValues& values) {
  const auto entropy = [&](const char* name, int64_t h) {
    const int64_t E = std::ssize(values.at(name)) / heads;
    const double* selected = values.at(name).data() + h * E;
    const double sum = std::accumulate(selected, selected + E, 0.0);
    double entropy = 0;
    for (int64_t e = 0; e < E; ++e)
      if (const double f = selected[e] / sum; f != 0) entropy -= f * std::log(f);
    return entropy / std::log(E);
  };
  for (int64_t h = 0; h < heads; ++h)
    values.at("expert_entropy")[h] =
        (entropy("value_selected", h) + entropy("output_selected", h)) / 2;
}

// The matrices as the cases name them: router.v.weight, router.o.weight [H*E,D].
struct RouterImpl : torch::nn::Module {
  Linear v{nullptr}, o{nullptr};

  RouterImpl(int64_t D, int64_t H, int64_t E) {
    if (E > 1) v = register_module("v", Linear(D, H * E, false));
    o = register_module("o", Linear(D, H * E, false));
  }
};
TORCH_MODULE(Router);

class Switchhead : public QkvHeads {
 public:
  using Options = SwitchheadOptions;

  Switchhead(const HeadShape& s, const Options& options)
      : QkvHeads(s, {}, options.projections(s)),
        experts_(options.experts),
        active_(options.active_of_head()),
        dropout_(options.expert_dropout),
        router_(register_module("router", Router(s.d_model, s.heads, options.experts))) {
    lay_out("router.v.weight", rows_of_heads());
    lay_out("router.o.weight", rows_of_heads());
    const double std = 1 / std::sqrt(static_cast<double>(s.layers));
    std::vector<Linear*> inputs{&router_->v, &router_->o};
    if (!s.init_as_host) inputs.insert(inputs.begin(), {&q_, &k_, &v_});
    for (auto* linear : inputs)
      if (*linear) init_normal(*linear, std / std::sqrt(static_cast<double>(s.d_model)));
    if (s.init_as_host) return;
    const auto width = static_cast<double>(std::max<int64_t>(1, s.heads * s.head_dim));
    init_normal(o_, std / std::sqrt(width));
  }

  std::vector<Statistic> own_statistics() const override {
    std::vector<Statistic> all;
    const auto add = [&](const char* name, const char* what, const char* formula) {
      all.push_back(expert_statistic(name, "1", what, formula, experts_));
    };
    add("output_probability", "mean score of the expert of outputs", "mean over queries of r");
    add("output_selected", "share of tokens that use the expert of outputs",
        "share of queries whose K largest r have it");
    if (!router_->v) return all;
    add("value_probability", "mean score of the expert of values", "mean over keys of s");
    add("value_selected", "share of tokens that use the expert of values",
        "share of keys whose K largest s have it");
    all.push_back(head_statistic("expert_entropy", "1", "how evenly a head uses its experts",
                                 "entropy of selected / sum selected over ln E; the mean of that "
                                 "of values and that of outputs"));
    all.back().finish = finish_expert_entropy;
    return all;
  }

  // Means of a head's experts, which meet each other in every pair: values of the mean once for
  // each matrix of outputs. Without the routers' factors.
  std::optional<HeadMatrices> matrices() const override {
    auto m = *QkvHeads::matrices();
    const auto by_expert = m.v.unflatten(1, {experts_, shape_.head_dim});  // [H,E,d,D]
    m.v = by_expert.mean(1, true).expand_as(by_expert).flatten(1, 2);      // [H,E*d,D]
    m.o = m.o / static_cast<double>(experts_);
    return m;
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto DH = static_cast<double>(shape_.d_model * shape_.heads);
    const auto E = static_cast<double>(experts_), d = static_cast<double>(shape_.head_dim);
    const double chosen = 2 * DH * d * static_cast<double>(1 + active_);  // and q, or k
    return static_cast<double>(T) * (chosen + 2 * DH * E) +
           static_cast<double>(S) * (chosen + (router_->v ? 2 * DH * E : 0)) +
           4 * pairs * static_cast<double>(shape_.heads) * d;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    if (shape_.heads == 0) return {.y = o_(x.new_zeros({x.size(0), x.size(1), 0}))};
    const auto q = queries(x, call), k = keys(x, call);  // [B,H,T,d], [B,H,S,d]
    const auto v = cached(call, "v", [&] { return mixed_values(x, call); });           // [B,H,S,d]
    const auto o = exclude_own(attend(q, k, v, call.unobserved(), scale()), v, call);  // [B,H,T,d]
    const auto chosen = choose(router_->o, rest_of(x, call), call.with_seed(1));
    if (call.observer) observe(q, k, v, o, chosen, call);
    return {.y = mix_outputs(o, chosen, call)};  // [B,T,D]
  }

  // Those that are dropped can be chosen where fewer than K are left.
  ChosenExperts choose(Linear& router, const Tensor& x, const HeadCall& call) {
    const auto logits = router(x).unflatten(2, {shape_.heads, experts_});
    const auto scores = logits.to(at_least_float(logits)).sigmoid();
    auto rank = scores.detach();
    if (is_training() && dropout_ > 0) {
      const auto generator = call.rng.generator(CounterRng::kExpertDropout, x.device());
      const auto dropped = at::empty_like(rank, at::kBool).bernoulli_(dropout_, generator);
      rank = rank.masked_fill(dropped, -1);
    }
    return {scores, rank, active_};  // [B,T,H,E]
  }

  // Of the tokens that are not cached: [B,H,S,d].
  Tensor mixed_values(const Tensor& x, const HeadCall& call) {
    const auto& m = source(x, call);
    if (!router_->v)
      return from_inputs(Input::kValue, m, call,
                         [&](const Tensor& from) { return split_heads(v_(from), shape_.heads); });
    const auto chosen = choose(router_->v, rest_of_source(x, call), call);
    if (call.observer) {
      const int64_t past = call.cache && !call.memory.defined() ? call.cache->length() : 0;
      const auto within = within_length(call.mask.key_length, past + m.size(1), x.device());
      report_experts(*call.observer, "value", chosen,
                     within.defined() ? within.slice(1, past) : within);
    }
    return from_inputs(Input::kValue, m, call, [&](const Tensor& from) {
      return project_by_experts(from, v_->weight, chosen);
    });
  }

  // Statistics of outputs are of o_h, which here is as wide as what meets the output projection. A
  // value's norm is that behind the matrix of outputs that the head uses on average.
  void observe(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
               const ChosenExperts& chosen, const HeadCall& call) const {
    at::NoGradGuard no_grad;
    const auto within = within_length(call.mask.query_length, o.size(2), o.device());
    const auto mean = report_experts(*call.observer, "output", chosen, within);
    if (!router_->v) return observe_attention({q, k, v, call, scale()}, o, call);
    const auto wide_v = spread_over_experts(v, mean);                            // [B,H,S,E*d]
    const auto wide_o = at::constant_pad_nd(o, {0, value_width() - o.size(3)});  // [B,H,T,E*d]
    observe_attention({q, k, wide_v, call, scale()}, wide_o, call);
  }

  Tensor mix_outputs(const Tensor& o, const ChosenExperts& chosen, const HeadCall& call) {
    if (!router_->v) return output(o, call.with_gates(chosen.kept().squeeze(3).transpose(1, 2)));
    // Features of all experts, 0 of those that the token did not choose: [B,H,T,E*d].
    const auto said = [&] { return spread_over_experts(o, chosen.kept()); };
    // Few experts are one matrix. An offset is said, and features are gated, where no expert is
    // heard, too.
    const auto& gates = call.gates;
    const bool by_feature = gates.defined() && gates.dim() == 4 && gates.size(3) > 1;
    if (chosen.few() || call.offset.defined() || by_feature || call.outputs)
      return output(said(), call);
    if (call.observer) {
      at::NoGradGuard no_grad;
      merge_heads(said(), call);
    }
    return sum_by_experts(merge_heads(o, call.unobserved()), o_->weight, chosen);
  }

  int64_t experts_, active_;
  double dropout_;
  Router router_;
};

const RegisterHeads<Switchhead> registered("switchhead",
                                           "heads that choose experts of values and of outputs");

}  // namespace
}  // namespace headlab
