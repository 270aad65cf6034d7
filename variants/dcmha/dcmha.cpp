// Dynamically composable multi-head attention: at every query i and key j the scores of all heads,
// and then their softmax weights, are multiplied by an [H,H] matrix that the two tokens make.
//
// Xiao et al., "Improving Transformers with Dynamically Composable Multi-Head Attention", arXiv
// 2405.08553, section 2.3; code Caiyun-AI/DCFormer. Branches c: 0 pre query, 1 pre key, 2 post
// query, 3 post key. From a token z, with r < R rows, heads m (from) and n (to):
//   u = gelu(z dw1[c]) qkw[c]                                       [2R,H]
//   w1[r] = u[r] / sqrt(mean_m u[r,m]^2 + 1e-6),  w2[r] = u[R+r],   g = tanh(z dd)[c]
//   M_ij = I + static + sum_r w1_i[r]^T w2_i[r] + diag(g_i) + sum_r w1_j[r]^T w2_j[r] + diag(g_j)
//   a_ij = softmax_j(scale q_i k_j composed by M pre) composed by M post,   o_i = sum_j a_ij v_j
//
// The light composition of modded-nanogpt (pull request 315) sets `gate: false`, which leaves out
// g, and `generator_bias`, which adds a bias to u. There z may be the residual stream of an earlier
// layer. With `compose_window: C` only the weights p' of a softmax over the nearest C keys are
// composed: a = p + p' (M - I).
#include <cmath>

#include "core/attention/composed/composition.h"
#include "core/attention/layers.h"
#include "core/attention/paths/paths.h"
#include "core/attention/precision.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/dcmha/composition_statistics.h"
#include "variants/dcmha/token_composition.h"

namespace headlab {
namespace {

using Side = ComposedSide;
enum class Branch { kQuery, kKey };

struct DcmhaOptions : MappedOptions, DerivedDefaults<HeadShape> {
  int64_t rank = 2;
  std::optional<int64_t> hidden;
  bool pre = true, post = true, query_wise = true, key_wise = true, fixed = false;
  bool gate = true, generator_bias = false;
  std::string gelu = "tanh", qk_norm_kind = "rms", generator_input = "input";
  int64_t compose_window = 0;

  void visit(Fields& f) override {
    MappedOptions::visit(f);
    f("qk_norm_kind", qk_norm_kind, "root mean square, or layer norm without bias",
      one_of({"rms", "layer"}));
    f("rank", rank, "rows of the mixing of heads that a token makes", at_least(1));
    f("hidden", hidden, "hidden width of what makes them (default: 2 rank heads)", at_least(1));
    f("pre", pre, "mix the heads' scores before the softmax");
    f("post", post, "mix the heads' weights after the softmax");
    f("query_wise", query_wise, "mix and gate by the query's token");
    f("key_wise", key_wise, "mix and gate by the key's token");
    f("static", fixed, "mix by a learned matrix for all tokens, too");
    f("gate", gate, "each token scales the heads, too: the diagonal g");
    f("generator_bias", generator_bias, "a bias behind qkw, on the rows that a token makes");
    f("generator_input", generator_input,
      "what makes the mixing: the layer's input, or the residual stream of an earlier layer",
      one_of({"input", "link"}));
    f("compose_window", compose_window,
      "mix the weights of a softmax over so many keys, the own one included; 0: of all",
      at_least(0));
    f("gelu", gelu, "activation of the hidden layer, approximated or exact",
      one_of({"tanh", "erf"}));
  }
  void check(const Complain& complain) const override {
    if (compose_window > 0 && (pre || !post || key_wise || !query_wise || gate || fixed))
      complain("compose_window",
               "goes with post and query_wise alone: write pre, key_wise, gate, static: false");
  }
  LinkParts reads() const override { return {.state = generator_input == "link"}; }
  int64_t width(int64_t heads) const { return hidden.value_or(2 * rank * heads); }
  void derive(const HeadShape& shape) override { hidden = width(shape.heads); }
  bool on(Side side) const { return side == Side::kPre ? pre : post; }
  bool dynamic() const { return (pre || post) && (query_wise || key_wise); }
  bool mixes(Side side) const { return on(side) && (query_wise || key_wise || fixed); }
  bool mixes() const { return mixes(Side::kPre) || mixes(Side::kPost); }
  Projections projections() const override {
    auto projections = MhaOptions::projections();
    projections.centred_norm = qk_norm_kind == "layer";
    return projections;
  }
  std::optional<InitDifferences> init_differences() const override {
    InitDifferences differences{{"q, k, v, o", "N(0, 0.006)", "as plain heads"}};
    if (fixed)
      differences.push_back({"compose.pre, compose.post", "N(0, 0.1 heads^-0.5)",
                             "0, so that each head keeps its own"});
    return differences;
  }
  HeadTraits traits() const override {
    return plain(
        map.options().limit({.independent = !mixes(), .rows_sum_to_one = !mixes(Side::kPost)}));
  }
};

// The parameters `compose.*` and what they make of tokens. Layouts are [in, out] and [from, to].
class ComposeImpl : public torch::nn::Module {
 public:
  ComposeImpl(const HeadShape& shape, const DcmhaOptions& options) : options_(options) {
    const int64_t H = shape.heads, R = options.rank, K = options.width(H);
    const auto D = static_cast<double>(shape.d_model), h = static_cast<double>(H),
               k = static_cast<double>(K);
    const auto normal = [&](const char* name, at::IntArrayRef sizes, double std) {
      return register_parameter(name, at::randn(sizes) * std);
    };
    if (options.dynamic()) {
      dw1 = normal("dw1", {shape.d_model, 4, K}, std::sqrt(2 / (D + k)));
      qkw = normal("qkw", {4, K, 2 * R, H}, 0.02 / (std::sqrt(k) * (h + static_cast<double>(R))));
      if (options.gate) dd = normal("dd", {shape.d_model, 4 * H}, 0.005 * std::sqrt(2 / (D + h)));
      if (options.generator_bias) bias = register_parameter("bias", at::zeros({4, 2 * R, H}));
    }
    const double of_static = shape.init_as_host ? 0 : 0.1 / std::sqrt(h);
    if (options.fixed && options.pre) pre = normal("pre", {H, H}, of_static);
    if (options.fixed && options.post) post = normal("post", {H, H}, of_static);
  }

  // Of tokens z [B,N,D] for each side that is on, and for one branch or (undefined) both: rows w1,
  // rows w2, gates if any -> [sides * branches,B,N,2R+1,H], float32 for half types. Absent heads
  // (not in `alive` [H]) do not count in the mean of w1, and are 0.
  Tensor factors(const Tensor& z, std::optional<Branch> branch, const Tensor& alive) const {
    const int64_t B = z.size(0), N = z.size(1), D = z.size(2);
    const int64_t R = options_.rank, K = dw1.size(2), H = qkw.size(3);
    const int64_t first = (options_.pre ? 0 : 2) + (branch == Branch::kKey ? 1 : 0);
    const int64_t step = branch ? 2 : 1, count = sides() * (branch ? 1 : 2);
    const auto type = at_least_float(z);
    const auto of = [&](const Tensor& t, int64_t dim) {
      return t.slice(dim, first, first + step * (count - 1) + 1, step);
    };
    // Hidden features and gates are made of the same tokens, in one product.
    const auto out = of(qkw, 0).flatten(2);                                // [c,K,2R*H]
    std::vector<Tensor> in{of(dw1, 1).flatten(1)};                         // [D,cK]
    if (dd.defined()) in.push_back(of(dd.view({D, 4, H}), 1).flatten(1));  // [D,cH]
    const auto made = project(z.flatten(0, 1), at::cat(in, 1).t());        // [BN,cK+cH]
    const auto hidden =
        at::gelu(made.narrow(1, 0, count * K), options_.gelu == "erf" ? "none" : "tanh")
            .view({B * N, count, K})
            .transpose(0, 1);  // [c,BN,K]
    const auto u_of = [&] {
      const WithoutAutocast exact;
      return hidden.to(type).bmm(out.to(type)).view({count, B * N, 2 * R, H});
    };
    auto u = u_of();
    if (bias.defined()) {
      u = u + of(bias, 0).to(type).unsqueeze(1);  // [c,1,2R,H]
    }
    auto w1 = u.narrow(2, 0, R);
    Tensor square = w1.square(), kept;
    if (alive.defined()) {
      kept = alive.to(type);
      square = (square * kept).sum(-1, true) / kept.sum().clamp_min(1);
    } else {
      square = square.mean(-1, true);  // [c,BN,R,1]
    }
    w1 = w1 * (square + 1e-6).rsqrt();
    std::vector<Tensor> parts{w1, u.narrow(2, R, R)};
    if (dd.defined()) {
      const auto g = made.narrow(1, count * K, count * H).tanh().to(type);
      parts.push_back(g.view({B * N, count, H}).transpose(0, 1).unsqueeze(2));
    }
    auto all = at::cat(parts, 2);
    if (alive.defined()) all = all * kept;
    return all.view({count, B, N, rows(), H});
  }

  int64_t hidden() const { return dw1.defined() ? dw1.size(2) : 0; }
  int64_t rows() const { return 2 * options_.rank + options_.gate; }  // 2R+1, or 2R
  int64_t sides() const { return options_.pre && options_.post ? 2 : 1; }

  // Those of one side, [B,2R+1,N,H], of [sides,B,N,2R+1,H]; undefined where `both` is.
  Tensor factors_of(Side side, const Tensor& both) const {
    if (!both.defined()) return {};
    return both.select(0, side == Side::kPost && options_.pre ? 1 : 0).transpose(1, 2);
  }
  // The same [B,sides(2R+1),N,H] as a cache holds it, and back.
  Tensor packed(const Tensor& both) const { return both.permute({1, 0, 3, 2, 4}).flatten(1, 2); }
  Tensor unpacked(const Tensor& kept) const {
    return kept.unflatten(1, {sides(), rows()}).permute({1, 0, 3, 2, 4});
  }

  Tensor fixed(Side side, const Tensor& alive) const {  // [H,H], float32 for half types
    const auto& w = side == Side::kPre ? pre : post;
    if (!w.defined()) return {};
    const auto full = w.to(at_least_float(w));
    return alive.defined() ? full * alive * alive.unsqueeze(1) : full;
  }

 private:
  DcmhaOptions options_;
  Tensor dw1, qkw, dd;  // [D,4,K], [4,K,2R,H], [D,4H]; undefined where no branch is on
  Tensor bias;          // [4,2R,H]
  Tensor pre, post;     // [H,H]; undefined without `static` or that side
};
TORCH_MODULE(Compose);

class Dcmha : public ProjectedHeads<DcmhaOptions> {
 public:
  Dcmha(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    if (!shape.init_as_host)
      for (auto* linear : {&q_, &k_, &v_, &o_})
        if (*linear) init_normal(*linear, 0.006);  // keys and values may be given
    compose_ = register_module("compose", Compose(shape, options));
    lay_out("compose.dw1", shared_by_heads());
    lay_out("compose.qkw", heads_along({3}));
    lay_out("compose.dd", {{.dim = 1, .repeat = 4}});
    lay_out("compose.bias", heads_along({2}));
    lay_out("compose.pre", heads_along({0, 1}));
    lay_out("compose.post", heads_along({0, 1}));
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto D = static_cast<double>(shape_.d_model), H = static_cast<double>(shape_.heads),
               R = static_cast<double>(options_.rank), K = static_cast<double>(compose_->hidden()),
               g = options_.gate ? 1.0 : 0.0;
    const double branch = D * K + 2 * K * R * H + g * D * H;  // multiply-adds a token
    double sum = 0;
    for (auto side : {Side::kPre, Side::kPost}) {
      if (!options_.on(side)) continue;
      if (options_.query_wise) sum += static_cast<double>(T) * branch + pairs * (2 * R + g) * H;
      if (options_.key_wise) sum += static_cast<double>(S) * branch + pairs * (2 * R + g) * H;
      if (options_.fixed) sum += pairs * H * H;
    }
    return projected_flops(T, S, pairs) + 2 * sum;
  }

  std::vector<Statistic> own_statistics() const override {
    std::vector<Statistic> all;
    const auto add = [&](const std::vector<Statistic>& more) {
      all.insert(all.end(), more.begin(), more.end());
    };
    if (options_.mixes(Side::kPost)) add(composed_statistics()), add(composed_map_statistics());
    for (auto side : {Side::kPre, Side::kPost})
      if (options_.on(side))
        add(composition_statistics(side, {.fixed = options_.fixed,
                                          .query = options_.query_wise,
                                          .key = options_.key_wise,
                                          .gates = options_.gate}));
    return all;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,H,S,d]
    const auto of_tokens = factors(x, call);            // both [sides,B,T or S,2R+1,H]
    const auto made_of = [&](Side side) {
      if (!options_.mixes(side)) return TokenComposition();
      return TokenComposition{compose_->fixed(side, call.alive),
                              compose_->factors_of(side, of_tokens.first),
                              compose_->factors_of(side, of_tokens.second)};
    };
    const TokenComposition tokens[] = {made_of(Side::kPre), made_of(Side::kPost)};
    const Composition sides[] = {tokens[0].composition(), tokens[1].composition()};
    if (options_.compose_window > 0)
      return {.y = output(composed_nearby(q, k, v, tokens, sides, call), v, call)};
    const auto [heads, maps] =
        composed_attend(q, k, v, sides[0], sides[1], call, scale());  // [B,H,T,d]
    if (call.observer && maps.composed.defined()) observe(maps, tokens, sides, call);
    return {.y = output(heads, v, call)};  // [B,T,D]
  }

  // Weights p, and what `post` makes of those of a softmax over the nearest keys: [B,H,T,d].
  Tensor composed_nearby(const Tensor& q, const Tensor& k, const Tensor& v,
                         const TokenComposition (&tokens)[2], const Composition (&sides)[2],
                         const HeadCall& call) const {
    require_maps(call.backend, "heads that are composed in a window");
    const int64_t T = q.size(2), S = k.size(2), C = options_.compose_window;
    const auto z = scores(q, k, call, scale());
    auto near = call.mask;
    near.window = near.window > 0 ? std::min(near.window, C) : C;
    const auto nearby = allowed_keys(near, T, S, q.device());
    const auto p = weights_of(z, allowed_keys(call.mask, T, S, q.device()), call),
               p_near = weights_of(z, nearby, call);
    const auto a = p + composed_weights(p_near, sides[1], nearby) - p_near;  // [B,H,T,S]
    const auto heads = weighted_values(a, v, call);
    if (call.observer && call.observer->wants_maps()) {
      observe_weights({.scores = z, .p = p, .a = a, .v = v, .out = heads}, call);
      observe({.products = {}, .scores = z, .weights = p_near, .composed = a}, tokens, sides, call);
    }
    return heads;
  }

  // The residual stream that an earlier layer offers; where there is none, the input.
  const Tensor& generator(const Tensor& input, const HeadCall& call) const {
    return shape_.offered.state ? linked(call, &LayerLink::state) : input;
  }

  // What queries and keys make of their tokens; undefined where a branch is off.
  std::pair<Tensor, Tensor> factors(const Tensor& x, const HeadCall& call) const {
    if (!options_.dynamic()) return {};
    const auto &queries = generator(rest_of(x, call), call),
               &keys = generator(rest_of_source(x, call), call);
    const auto make = [&](const Tensor& z, std::optional<Branch> branch) {
      return compose_->factors(z, branch, call.alive);
    };
    if (options_.query_wise && options_.key_wise && !call.cache && queries.is_same(keys)) {
      const auto both = make(queries, {}).unflatten(0, {-1, 2});  // [sides,2,B,T,2R+1,H]
      return {both.select(1, 0), both.select(1, 1)};
    }
    std::pair<Tensor, Tensor> made;
    if (options_.query_wise) made.first = make(queries, Branch::kQuery);
    if (!options_.key_wise) return made;
    const auto of_keys = [&] { return make(keys, Branch::kKey); };
    made.second = call.cache ? compose_->unpacked(cached(
                                   call, "compose", [&] { return compose_->packed(of_keys()); }))
                             : of_keys();
    return made;
  }

  // Of either side: what tokens made, and the composition of it.
  void observe(const ComposedMaps& maps, const TokenComposition (&tokens)[2],
               const Composition (&sides)[2], const HeadCall& call) const {
    at::NoGradGuard no_grad;
    auto& observer = *call.observer;
    if (!observer.wants_statistics()) return;
    const CountedPairs counted(maps.weights, call);
    if (options_.mixes(Side::kPre))
      report_composition(observer, Side::kPre, tokens[0], sides[0], maps.products, counted, call);
    if (!options_.mixes(Side::kPost)) return;
    report_composition(observer, Side::kPost, tokens[1], sides[1], maps.weights, counted, call);
    report_composed_map(observer, maps, counted);
  }

  Compose compose_{nullptr};
};

const RegisterHeads<Dcmha> registered(
    "dcmha", "heads whose scores and weights are mixed by matrices that the tokens make");

}  // namespace
}  // namespace headlab
