// Stick-breaking attention: every key, the nearest first, breaks a share off what those behind it
// have left of a stick, so that the most recent key of two alike gets more, without positions.
//
// Tan et al., "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study",
// arXiv 2410.17980, equations (1) to (5); shawntan/stickbreaking-attention; models:
// IBM/dolomite-engine. With z = scale q k^T + biases and keys j < i (attend_current: j <= i),
//   A_ij = sigmoid(z_ij) prod_{j < k < i} (1 - sigmoid(z_ik))     rest_i = 1 - sum_j A_ij
//   value: A_ii += rest_i                      the own value takes what is left
//   bias:  o_h = A v + rest_i remainder_h      a learned vector of each head does
//   none:  o_h = A v
//   norm:  o_h <- (o_h - mean) / sqrt(var + eps) weight_h + bias_h
// Hidden keys break nothing off. A row without any key to attend to is 0, rest included.
#include "core/attention/paths/paths.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/stickbreaking/sticks.h"

namespace headlab {
namespace {

struct StickbreakingOptions : MhaOptions {
  std::string remainder = "value";
  bool attend_current = false, norm = false;
  double norm_eps = 1e-5;

  void visit(Fields& f) override {
    f("remainder", remainder,
      "what takes the rest of a stick: the token's own value, a learned vector of the head (bias), "
      "or nothing",
      one_of({"value", "bias", "none"}));
    f("attend_current", attend_current, "the token itself breaks its share off first");
    f("norm", norm, "group norm of what a head says, a weight and a bias of each head");
    f("norm_eps", norm_eps, "epsilon of the norm", above(0));
    MhaOptions::visit(f);
  }
  HeadTraits traits() const override {
    return plain({.rows_sum_to_one = remainder == "value",
                  .bidirectional = false,
                  .cross = false,
                  .grouped = true});
  }
};

class Stickbreaking : public ProjectedHeads<StickbreakingOptions> {
 public:
  Stickbreaking(const HeadShape& s, const Options& options) : ProjectedHeads(s, options) {
    if (options.remainder == "bias")
      remainder_ = parameter("remainder", at::zeros({s.heads, s.head_dim}), heads_along({0}));
    if (!options.norm) return;
    norm_ = register_module("norm", RmsNorm(at::IntArrayRef{s.heads * s.head_dim}, options.norm_eps,
                                            /*with_bias=*/true));
    for (const char* name : {"norm.weight", "norm.bias"}) lay_out(name, rows_of_heads());
  }

  std::vector<Statistic> own_statistics() const override {
    auto all = map_statistics(*sticks_);
    all.push_back(head_statistic("remainder_mean", "1", "rest of the stick",
                                 "mean over rows of 1 - sum_j A without the rest"));
    return all;
  }
  double flops(int64_t T, int64_t S, double pairs) const override {
    return projected_flops(T, S, pairs);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    auto heads = holds_map(q, k, v, call) ? by_map(map_of(q, k, call), v, call)
                                          : by_rows(q, k, v, call);  // [B,H,T,d]
    heads = normed(exclude_own(heads, v, call), k.size(2), call);
    if (call.observer) observe(q, k, v, heads, call);
    return {.y = output(heads, call)};  // [B,T,D]
  }

  // Rows without any key to attend to stay 0: the bias of the norm is not theirs.
  Tensor normed(const Tensor& heads, int64_t S, const HeadCall& call) {
    if (!norm_ || shape_.heads == 0) return heads;
    const auto wide = widened(heads);
    const auto said = norm_(wide - wide.mean(-1, /*keepdim=*/true)).to(heads.scalar_type());
    const auto allowed = hidden_from_some(call)
                             ? allowed_keys(call.mask, heads.size(2), S, heads.device())
                             : Tensor();
    return allowed.defined() ? said.masked_fill(allowed.any(-1, true).logical_not(), 0) : said;
  }
  // By more than their places.
  static bool hidden_from_some(const HeadCall& call) {
    return call.mask.allowed.defined() || call.mask.key_length.defined();
  }

  // The keys that break: the token itself where it attends to itself.
  KeyReach reach(const HeadCall& call) const {
    auto reach = key_reach(call.mask.causal, call.mask.window);
    if (!options_.attend_current) reach.ahead = -1;
    return reach;
  }
  AttentionCall call_of(const Tensor& q, const Tensor& k, const Tensor& v,
                        const HeadCall& call) const {
    AttentionCall own(q, k, v, call, scale());
    own.map = sticks_;
    own.reach = reach(call);
    return own;
  }
  // Few new queries have a small map, and need no copy of the keys.
  bool holds_map(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call) const {
    if (call.backend != Backend::kAuto) return call.backend == Backend::kEager;
    return (call.cache && q.size(2) < q.size(3)) || !rows_serve(call_of(q, k, v, call));
  }

  // Rest of rows [B,H,T] that may go where the option says: by `value` a token that may not attend
  // to itself loses it, by `bias` one that may not attend to anything.
  Tensor given_rest(const Tensor& rest, int64_t S, const HeadCall& call) const {
    if (!hidden_from_some(call)) return rest;
    const int64_t T = rest.size(2);
    const auto allowed = allowed_keys(call.mask, T, S, rest.device());
    auto given = allowed.any(-1);
    if (options_.remainder == "value") {
      auto sizes = (allowed.dim() > 1 ? allowed : allowed.unsqueeze(0)).sizes().vec();
      *(sizes.end() - 2) = T, sizes.back() = S;
      given = allowed.expand(sizes).diagonal(S - T, -2, -1);
    }
    return rest.masked_fill(given.logical_not(), 0);
  }

  struct WholeMap {
    Tensor scores, a, rest;  // [B,H,T,S], [B,H,T,S] with the rest where that has a value, [B,H,T]
  };
  WholeMap map_of(const Tensor& q, const Tensor& k, const HeadCall& call) const {
    const int64_t T = q.size(2), S = k.size(2);
    const auto z = scores(q, k, call, scale());
    auto [a, rest] = break_sticks(
        z, allowed_keys(reach(call), call.mask.key_length, call.mask.allowed, T, S, q.device()));
    if (options_.remainder == "bias") rest = given_rest(rest, S, call);
    if (options_.remainder == "value")
      a = at::diagonal_scatter(a, a.diagonal(S - T, 2, 3) + given_rest(rest, S, call), S - T, 2, 3);
    if (call.uniform.defined()) {
      const auto alike =
          masked_softmax(at::zeros_like(z), allowed_keys(call.mask, T, S, z.device()));
      a = at::where(call.uniform.view({-1, 1, 1}), alike, a);
      rest = rest.masked_fill(call.uniform.view({-1, 1}), 0);
    }
    return {z, a, rest};
  }

  Tensor with_vector(const Tensor& heads, const Tensor& rest) const {
    if (!remainder_.defined()) return heads;
    return heads + rest.unsqueeze(3).to(heads.scalar_type()) *
                       remainder_.unsqueeze(1).to(heads.scalar_type());
  }

  Tensor by_map(const WholeMap& map, const Tensor& v, const HeadCall& call) const {
    return with_vector(weighted_values(map.a, v, call), map.rest);
  }

  Tensor by_rows(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call) const {
    const auto own = call_of(q, k, v, call);
    if (options_.remainder == "none") return attended(own).out;
    auto [heads, rest] = broken_by_rows(own, call);
    const int64_t T = q.size(2), S = k.size(2);
    rest = given_rest(rest, S, call);
    if (options_.remainder == "bias") return with_vector(heads, rest);
    if (call.dropout > 0) rest = rest * kept_of_own(rest, S, own.dropped());
    return heads + rest.unsqueeze(3) * repeat_kv(v.narrow(2, S - T, T), call.kv_map, q.size(1));
  }

  void observe(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& heads,
               const HeadCall& call) const {
    if (!call.observer->wants_maps()) return;
    at::NoGradGuard no_grad;
    const auto map = map_of(q, k, call);
    auto own = call;
    own.map = sticks_;
    observe_weights({.scores = map.scores, .p = map.a, .a = map.a, .v = v, .out = heads}, own);
    if (!call.observer->wants_statistics()) return;
    const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), q.device());
    report_rows(*call.observer, "remainder_mean", map.rest,
                counted_pairs(map.a, allowed, call.mask).any(-1));
  }

  MapPtr sticks_ = stick_map(options_.remainder == "value");
  Tensor remainder_;  // [H,d], bias
  RmsNorm norm_{nullptr};
};

const RegisterHeads<Stickbreaking> registered("stickbreaking",
                                              "each key breaks its share off what later ones left");

}  // namespace
}  // namespace headlab
