// Mixture-of-Head attention: every token uses all shared heads and the K best of the routed ones,
// each scaled by a gate of the token.
//
// Jin, Zhu, Yuan, Yan, "MoH: Multi-Head Attention as Mixture-of-Head Attention", arXiv 2410.11842:
// gates equations (5) and (6), load balance (7) and (8), query norms and straight-through gradients
// (9) and (10). `gates: normalized` is what the authors' ViT and DiT compute (SkyworkAI/MoH):
//
//   p = softmax(W_r x), s = softmax(W_s x), a = softmax(W_h x);  m = the K largest of p
//   g_shared = 2 a_0 hs s,  g_routed = 2 a_1 K (p m) / sum(p m);  y = sum_h g_h W_o^h o_h
//
// Of H heads the first hs are shared, the other E = H - hs routed.
#include <fmt/format.h>

#include <algorithm>

#include "core/attention/paths/chosen_paths.h"
#include "core/attention/precision.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/moh/routed_attention.h"
#include "variants/moh/routes.h"

namespace headlab {
namespace {

struct MohOptions : HeadOptions, DerivedDefaults<HeadShape> {
  std::optional<int64_t> shared, active;
  std::string router = "learned", gates = "normalized", straight_through = "none";
  std::string balance = "code", compute = "auto";
  double balance_weight = 0.01;
  bool two_stage = true, qkv_bias = false, o_bias = false;
  MapBlock map;

  void visit(Fields& f) override {
    f("shared", shared, "heads that all tokens use (default: heads / 4, at least 1)", at_least(0));
    f("active", active, "routed heads a token uses (default: heads / 2 - shared, at least 1)",
      at_least(0));
    f("router", router, "what ranks the routed heads: learned matrices, or the norms of queries",
      one_of({"learned", "query_norm"}));
    f("gates", gates,
      "normalized: the released code, near 1 while untrained; paper: bare probabilities (eq. 5)",
      one_of({"normalized", "paper"}));
    f("two_stage", two_stage, "a router weighs shared against routed heads; false: 1/2 each");
    f("straight_through", straight_through,
      "gradient of query_norm's binary gates (eq. 10): none, of all routed heads, or of selected",
      one_of({"none", "all", "selected"}));
    f("balance", balance, "load-balance loss: code = E sum P f, paper = sum P f (eq. 7)",
      one_of({"code", "paper"}));
    f("balance_weight", balance_weight, "weight of the load-balance loss; 0: none", at_least(0));
    f("compute", compute,
      "dense: all heads for all tokens; sparse: skips unselected queries; auto: whichever pays",
      one_of({"auto", "dense", "sparse"}));
    f("qkv_bias", qkv_bias, "biases on q, k and v");
    f("o_bias", o_bias, "bias on the output projection");
    f("map", map, kMapHelp);
  }

  bool learned() const { return router == "learned"; }
  int64_t shared_of(int64_t H) const {
    return shared.value_or(std::min(H, std::max<int64_t>(1, H / 4)));
  }
  int64_t active_of(int64_t H) const {
    const int64_t hs = shared_of(H);
    return active.value_or(std::min(H - hs, std::max<int64_t>(1, H / 2 - hs)));
  }
  void derive(const HeadShape& shape) override {
    active = active_of(shape.heads);
    shared = shared_of(shape.heads);
  }

  HeadTraits traits() const override {
    return map.options().limit({.independent = false, .grouped = true, .own_values = true});
  }
  Projections projections() const { return {.qkv_bias = qkv_bias, .o_bias = o_bias}; }
  const MapOptions* map_options() const { return &map.options(); }

  void check(const Complain& complain) const override {
    if (!learned() && gates != "normalized")
      complain("gates", "query_norm has binary gates; leave gates out or use router: learned");
    if (!learned() && !two_stage)
      complain("two_stage", "query_norm has no group router; leave it out or use router: learned");
    if (learned() && straight_through != "none")
      complain("straight_through",
               "learned gates have a gradient; leave it out or use router: query_norm");
    if (compute == "sparse" && straight_through == "all")
      complain("compute",
               "sparse skips outputs that straight_through: all needs; use dense or auto");
  }

  std::optional<InitDifferences> init_differences() const override { return InitDifferences(); }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    const int64_t H = shape.heads, hs = shared_of(H);
    if (hs > H)
      return complain("shared", fmt::format("{} shared heads of {}; choose at most {}", hs, H, H));
    const int64_t E = H - hs, K = active_of(H);
    if (K > E)
      complain("active",
               fmt::format("{} active of {} routed heads ({} heads, {} shared); choose at most {}",
                           K, E, H, hs, E));
    else if (K == 0 && E > 0)
      complain("active",
               fmt::format("no token would use the {} routed heads; choose at least 1", E));
    else if (!learned() && E < 2)
      complain("router",
               fmt::format("query_norm ranks 2 routed heads or more, here are {}; choose fewer "
                           "shared or router: learned",
                           E));
  }
};

// Names the routers' matrices as the cases do: router.routed.weight [E,D], router.shared.weight
// [hs,D], router.groups.weight [2,D]; row 0 of the groups is the shared heads'.
struct RouterImpl : torch::nn::Module {
  Linear routed{nullptr}, shared{nullptr}, groups{nullptr};

  RouterImpl(int64_t D, int64_t hs, int64_t E, int64_t K, bool two_stage) {
    // Truncated at 2, that is 100 deviations, in the released ViT: the plain normal.
    auto matrix = [&](const char* name, int64_t rows) {
      Linear linear = register_module(name, Linear(D, rows, false));
      init_normal(linear, 0.02);
      return linear;
    };
    if (K > 0) routed = matrix("routed", E);
    if (hs > 1) shared = matrix("shared", hs);
    if (K > 0 && hs > 0 && two_stage) groups = matrix("groups", 2);
  }
};
TORCH_MODULE(Router);

// The heads that take part, by their rows in the layer: shared [hs], routed [E].
struct Roster {
  Tensor shared, routed;
  int64_t hs, K;
  bool whole;  // these are all
};

class Moh : public ProjectedHeads<MohOptions> {
 public:
  Moh(const HeadShape& s, const Options& options)
      : ProjectedHeads(s, options),
        shared_(options.shared_of(s.heads)),
        active_(options.active_of(s.heads)) {
    if (!options.learned()) return;
    const int64_t routed = s.heads - shared_;
    router_ =
        register_module("router", Router(s.d_model, shared_, routed, active_, options.two_stage));
    lay_out("router.shared.weight", {{.count = shared_}});
    lay_out("router.routed.weight", {{.first = shared_, .count = routed}});
    lay_out("router.groups.weight", shared_by_heads());
  }

  std::vector<Statistic> own_statistics() const override { return route_statistics(); }
  std::vector<std::string> aux_names() const override {
    return has_loss() ? std::vector<std::string>{"balance"} : std::vector<std::string>{};
  }

  // Of what the method asks for: queries, attention and outputs of active heads only.
  double flops(int64_t T, int64_t S, double pairs) const override {
    const double all = projected_flops(T, S, pairs);
    const double width = static_cast<double>(shape_.heads * shape_.head_dim);
    const double projection = 2.0 * T * shape_.d_model * width;  // q, and as much o
    const bool dense = options_.compute == "dense" || shape_.heads == 0;
    const double idle = dense ? 0 : 1 - static_cast<double>(shared_ + active_) / shape_.heads;
    const double skipped = 4.0 * pairs * width + projection;
    if (!options_.learned()) return all - idle * skipped;  // all queries' norms are compared
    double routers = 0;
    for (const auto& p : router_->parameters()) routers += 2.0 * T * p.numel();
    return all - idle * (skipped + projection) + routers;
  }

 private:
  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override {
    auto options = options_;
    options.shared = std::count_if(plan.rows.begin(), plan.rows.end(),
                                   [&](int64_t row) { return row < shared_; });
    options.active = std::min(active_, plan.shape.heads - *options.shared);
    return build_heads<Moh>(plan.shape, options);
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const bool sparse = skips_rows(x, call);
    Tensor raw;  // [B,H,T,d]: all queries, as query_norm wants them
    const auto project = [&](const Tensor& from) {
      return split_heads(q_(from), shape_.heads, shape_.head_dim);
    };
    if (!sparse || !options_.learned()) raw = from_inputs(Input::kQuery, x, call, project);
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const auto roster = list_heads(call, x.device());
    const auto& rest = rest_of(x, call);
    auto routes = options_.learned() ? route(rest, roster)
                                     : route_by_norm(call.inputs ? project(rest) : raw, roster);
    const auto gates = routes.gates.transpose(1, 2);  // [B,H,T]
    const RoutedHeads heads{q_, o_, shape_.heads, shared_, scale()};
    HeadOutput out{.y = sparse ? attend_routed(heads, x, raw, k, v, gates, call)
                               : attend_all(raw, k, v, gates, call),
                   .gates = routes.gates};  // [B,T,D], [B,T,H]
    if (call.observer)
      report_routes(*call.observer, routes, call.mask.query_length, query_classes(call, x.size(1)));
    if (is_training() && has_loss() && roster.K > 0) {
      const int64_t factor = options_.balance == "code" ? routes.routed.size(0) : 1;
      const auto loss = options_.balance_weight * factor * load_balance(routes);
      out.aux.push_back({"balance", loss, OverLayers::kMean});
    }
    return out;
  }

  Tensor attend_all(const Tensor& raw, const Tensor& k, const Tensor& v, const Tensor& gates,
                    const HeadCall& call) {
    const auto q = rotate(raw, call, call.positions);
    const auto heads = attend(q, k, v, call.unobserved(), scale());  // [B,H,T,d]
    if (call.observer) observe_attention({q, k, v, call, scale()}, heads, call, gates != 0);
    return output(heads, v, call.with_gates(gates));  // [B,T,D]
  }

  Roster list_heads(const HeadCall& call, const at::Device& device) const {
    const auto all = at::arange(shape_.heads, at::TensorOptions(at::kLong).device(device));
    const auto first = all.narrow(0, 0, shared_), last = all.slice(0, shared_);
    if (!call.alive.defined()) return {first, last, shared_, active_, true};
    const auto shared = first.masked_select(call.alive.narrow(0, 0, shared_));
    const auto routed = last.masked_select(call.alive.slice(0, shared_));
    return {shared, routed, shared.size(0), std::min(active_, routed.size(0)), false};
  }

  // Softmax over the logits of some heads (indices): [B,T,n], never in half precision.
  static Tensor probabilities(const Tensor& logits, const Tensor& heads, bool whole) {
    const auto type = at_least_float(logits);
    return at::softmax(whole ? logits : logits.index_select(-1, heads), -1, type);
  }

  // Gates of the heads that take part [B,T,hs+E] -> of all of the layer's [B,T,H].
  Tensor of_all_heads(const Tensor& gates, const Roster& r) const {
    if (r.whole) return gates;
    return gates.new_zeros({gates.size(0), gates.size(1), shape_.heads})
        .index_copy(2, at::cat({r.shared, r.routed}), gates);
  }

  // Of the shared and of the routed heads, [B,T,2]. `ones`: [B,T,1], of the type to compute in.
  Tensor group_weights(const Tensor& x, const Tensor& ones) {
    if (!options_.two_stage) return (ones / 2).expand({-1, -1, 2});
    return at::softmax(router_->groups(x), -1, ones.scalar_type());
  }

  Routes route(const Tensor& x, const Roster& r) {
    Routes routes;
    routes.routed = r.routed;
    const bool normalized = options_.gates == "normalized";
    const auto type = at_least_float(x);
    const auto ones = at::ones({x.size(0), x.size(1), 1}, x.options().dtype(type));  // [B,T,1]
    auto to_shared = ones, to_routed = ones;  // where one of the groups is all there is
    if (r.hs > 0 && r.K > 0) {
      const auto a = group_weights(x, ones);  // [B,T,2]
      routes.alpha = a.select(2, 0);
      const auto weights = (normalized ? 2 * a : a).split(1, 2);
      to_shared = weights[0];
      to_routed = weights[1];
    }
    std::vector<Tensor> gates{ones.narrow(2, 0, 0)};
    if (r.hs > 0) {
      const auto s = shared_ > 1 ? probabilities(router_->shared(x), r.shared, r.whole) : ones;
      gates.push_back(to_shared * (normalized ? r.hs * s : s));  // [B,T,hs]
    }
    if (r.K > 0) {
      const auto p = probabilities(router_->routed(x), r.routed - shared_, r.whole);  // [B,T,E]
      routes.probability = p;
      routes.selected = choose_heads(p, r.K);
      const auto chosen = p * routes.selected;
      gates.push_back(to_routed * (normalized ? r.K * chosen / chosen.sum(-1, true) : chosen));
    }
    routes.gates = of_all_heads(at::cat(gates, 2), r);  // [B,T,H]
    return routes;
  }

  Routes route_by_norm(const Tensor& raw, const Roster& r) const {
    Routes routes;
    routes.routed = r.routed;
    const auto type = at_least_float(raw);
    const auto norms = raw.to(type).norm(2, -1).transpose(1, 2);  // [B,T,H]
    const auto ones = at::ones({raw.size(0), raw.size(2), r.hs}, norms.options());
    if (r.K == 0) {
      routes.gates = of_all_heads(ones, r);
      return routes;
    }
    const auto n = norms.index_select(2, r.routed);  // [B,T,E]
    // Norms that are all equal have no deviation to be divided by: p is uniform there.
    const auto flat = n.amax(-1, true) == n.amin(-1, true);  // [B,T,1]
    const auto squares = (n - n.mean(-1, true)).square().sum(-1, true);
    const auto variance = squares.masked_fill(flat, 1) / std::max<double>(1, n.size(2) - 1);
    const auto p = at::softmax(n.masked_fill(flat, 0) / variance.sqrt(), -1);
    routes.probability = p;
    routes.selected = choose_heads(n, r.K);
    auto m = routes.selected.to(type);
    if (options_.straight_through == "all") m = m + (p - p.detach());
    if (options_.straight_through == "selected") m = m * (1 + (p - p.detach()));
    routes.gates = of_all_heads(at::cat({ones, m}, 2), r);  // [B,T,H]
    return routes;
  }

  bool has_loss() const { return active_ > 0 && options_.balance_weight > 0; }
  bool skips_rows(const Tensor& x, const HeadCall& call) const {
    if (active_ == 0 || call.uniform.defined() || options_.straight_through == "all") return false;
    // Rows of all heads alike.
    if (call.inputs || call.outputs || call.shaping.exclusion.defined()) return false;
    if (options_.compute != "auto") return options_.compute == "sparse";
    return rows_pay(x, call, static_cast<double>(active_) / (shape_.heads - shared_));
  }

  int64_t shared_, active_;
  Router router_{nullptr};
};

const RegisterHeads<Moh> registered("moh", "mixture of heads: shared ones and the best routed",
                                    {route_statistics(), report_recorded_routes});

}  // namespace
}  // namespace headlab
