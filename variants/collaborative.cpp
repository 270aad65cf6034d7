// Collaborative heads: one query space and one key space of R features for all heads; a head is a
// vector that says how strongly it uses each of these features.
//
// Cordonnier, Loukas, Jaggi, "Multi-Head Attention: Collaborate Instead of Concatenate", arXiv
// 2006.16362, equations (6) and (7): head h has the logits (Q diag(mixing[h]) K^T + c_h) scale,
// with c = y content_bias^T a bias of each key alone. Values and output projection stay ordinary.
// The authors' codes scale by (R/H)^-0.5 (`scale: shared`) or by head_dim^-0.5 (`scale: head`).
#include <fmt/format.h>

#include <cmath>

#include "core/config/alternatives.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

// R features go to the heads in blocks of ceil(R/H), the last of which may be smaller.
Tensor blocks(int64_t heads, int64_t shared_dim) {
  const int64_t width = heads > 0 ? (shared_dim + heads - 1) / heads : 1;
  const auto owner = at::arange(shared_dim).floor_divide(width);    // [R]
  return (owner == at::arange(heads).unsqueeze(1)).to(at::kFloat);  // [H,R]
}

Tensor initial_mixing(const std::string& how, int64_t H, int64_t R) {
  if (how == "concatenate") return blocks(H, R);
  if (how == "ones") return at::ones({H, R});
  if (how == "normal") return at::randn({H, R}) * 0.2;
  const double sum = static_cast<double>(how == "linear" ? R : H + R);
  const double bound = std::sqrt((how == "linear" ? 1 : 6) / sum);
  return (at::rand({H, R}) * 2 - 1) * bound;
}

class Collaborative : public AttentionHeads {
 public:
  struct Options : HeadOptions, DerivedDefaults<HeadShape> {
    std::optional<int64_t> shared_dim;
    bool content_bias = true;
    WordOrNumber scale{{"head", "shared"}};
    bool v_bias = true, o_bias = true;
    std::string mixing_init = "default";
    bool freeze_mixing = false;
    MapBlock map;

    void visit(Fields& f) override {
      f("shared_dim", shared_dim,
        "query and key features that all heads share, R (default: heads * head_dim)", at_least(1));
      f("content_bias", content_bias, "a learned bias of each key for each head, inside the scale");
      f("scale", scale, "factor on the scores: head = head_dim^-0.5, shared = (R/heads)^-0.5");
      f("v_bias", v_bias, "bias on the values");
      f("o_bias", o_bias, "bias on the output projection");
      f("mixing_init", mixing_init,
        "start of the mixing: normal std 0.2, concatenate = a block of features for each head, "
        "ones, linear = uniform +-R^-0.5, xavier = uniform (default: normal; with init_weights: "
        "host, concatenate)",
        one_of({"default", "normal", "concatenate", "ones", "linear", "xavier"}));
      f("freeze_mixing", freeze_mixing, "the mixing stays as it begins");
      f("map", map, kMapHelp);
    }
    HeadTraits traits() const override { return map.options().limit({.own_values = true}); }
    void check_shape(const HeadShape& shape, const HeadDemands& demands,
                     const Complain& complain) const override {
      if (demands.rotary && features(shape) % 2 != 0)
        complain(
            "shared_dim",
            fmt::format("rotary positions turn pairs of features, here are {}; choose {} or {}",
                        features(shape), features(shape) - 1, features(shape) + 1));
    }
    std::optional<InitDifferences> init_differences() const override {
      return InitDifferences{
          {"q, k, v, o", "uniform, +-1 / sqrt(inputs), biases too", "as plain heads"},
          {"content_bias", "uniform, +-1 / sqrt(d_model)", "0"},
          {"mixing", "normal, unless mixing_init is written",
           "concatenate, unless mixing_init is written"}};
    }
    void derive(const HeadShape& shape) override {
      shared_dim = features(shape);
      mixing_init = start_of_mixing(init_weights == "host" || shape.init_as_host);
    }
    std::string start_of_mixing(bool as_host) const {
      if (mixing_init != "default") return mixing_init;
      return as_host ? "concatenate" : "normal";
    }
    int64_t features(const HeadShape& s) const { return shared_dim.value_or(s.heads * s.head_dim); }
    double factor(const HeadShape& s) const {
      if (scale.number()) return *scale.number();
      if (scale.word() == "head") return 1 / std::sqrt(s.head_dim);
      return std::sqrt(static_cast<double>(s.heads) / static_cast<double>(features(s)));
    }
  };

  Collaborative(const HeadShape& s, const Options& options)
      : AttentionHeads(s, options.traits()),
        options_(options),
        shared_dim_(options.features(s)),
        scale_(options.factor(s)) {
    q_ = projection("q", s.d_model, shared_dim_, false, shared_by_heads());
    k_ = projection("k", s.d_model, shared_dim_, false, shared_by_heads());
    v_ = projection("v", s.d_model, s.heads * s.head_dim, options.v_bias, rows_of_heads());
    output_projection(s.heads * s.head_dim, options.o_bias);
    if (s.init_as_host) init_projections({&q_, &k_, &v_}, o_, s);
    mixing_ = register_mixing(
        initial_mixing(options.start_of_mixing(s.init_as_host), s.heads, shared_dim_));
    if (options.content_bias) {
      content_bias_ = projection("content_bias", s.d_model, s.heads, false, rows_of_heads());
      if (s.init_as_host) init_normal(content_bias_, 0);
    }
    set_map(options.map.options());
  }

  std::optional<HeadMatrices> matrices() const override {
    const int64_t D = shape_.d_model, H = shape_.heads, d = shape_.head_dim;
    const auto shared = q_->weight.detach();  // [R,D]
    return HeadMatrices{.q = mixing_.detach().to(shared.scalar_type()).unsqueeze(2) * shared,
                        .k = k_->weight.detach().expand({H, -1, -1}),
                        .v = v_->weight.detach().view({H, d, D}),
                        .o = o_->weight.detach().view({D, H, d}).transpose(0, 1)};
  }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const double D = shape_.d_model, H = shape_.heads, R = shared_dim_, d = shape_.head_dim;
    const double projections = (T + S) * D * R + (T + S) * D * H * d;
    const double biases = content_bias_ ? S * D * H : 0;
    return 2 * (projections + biases + H * T * R + pairs * H * (R + d));
  }

 private:
  Tensor register_mixing(const Tensor& start) {
    if (!options_.freeze_mixing) return parameter("mixing", start, heads_along({0}));
    lay_out("mixing", heads_along({0}));
    return register_buffer("mixing", start);
  }

  // The features are everybody's, and the scale that of the heads as built.
  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override {
    auto options = options_;
    options.shared_dim = shared_dim_;
    options.scale = WordOrNumber(scale_);
    return build_heads<Collaborative>(plan.shape, options);
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
      return mixed_queries(from, call);
    });                            // [B,H,T,R+H], scaled
    const auto k = keys(x, call);  // [B,1,S,R+H], [B,H,S,R+H] of heads with inputs of their own
    const auto v = cached(call, "v", [&] {
      return from_inputs(Input::kValue, source(x, call), call,
                         [&](const Tensor& from) { return split_heads(v_(from), shape_.heads); });
    });                                           // [B,H,S,d]
    const auto heads = attend(q, k, v, call, 1);  // [B,H,T,d]
    return {.y = output(heads, v, call)};         // [B,T,D]
  }

  // q k^T also adds the content bias: each query ends in the one-hot of its head, each key in the
  // biases c of all heads. What is joined is joined before the heads differ, where it is small.
  Tensor mixed_queries(const Tensor& x, const HeadCall& call) {
    auto shared = q_(x).unsqueeze(1);                             // [B,1,T,R]
    auto mixing = mixing_.to(shared.scalar_type()).unsqueeze(1);  // [H,1,R]
    if (content_bias_) {
      const int64_t H = shape_.heads;
      shared = at::cat({shared, shared.new_ones({x.size(0), 1, x.size(1), H})}, -1);
      mixing = at::cat({mixing, at::eye(H, mixing.options()).unsqueeze(1)}, -1);
    }
    return rotated(shared * (mixing * scale_), call, call.positions);  // [B,H,T,R+H]
  }

  // One head of keys, seen by every query head. The cache holds R + H numbers a token.
  Tensor keys(const Tensor& x, const HeadCall& call) {
    const auto& y = source(x, call);
    if (!call.inputs) return cached(call, "k", [&] { return shared_keys(y, call); });
    return from_inputs(Input::kKey, y, call, [&](const Tensor& from) {
      return shared_keys(from, call).expand({-1, shape_.heads, -1, -1});
    });
  }

  Tensor shared_keys(const Tensor& from, const HeadCall& call) {
    auto weight = k_->weight;
    if (content_bias_) weight = at::cat({weight, content_bias_->weight});
    return rotated(project(from, weight).unsqueeze(1), call, key_positions(call));  // [B,1,S,R+H]
  }

  // Queries turn after they are mixed, or logits would depend on more than distance. The content
  // bias, behind the R features, never does.
  Tensor rotated(const Tensor& t, const HeadCall& call, const Tensor& positions) const {
    if (!call.rotary || !content_bias_) return rotate(t, call, positions);
    const auto parts = t.split_with_sizes({shared_dim_, shape_.heads}, -1);
    return at::cat({rotate(parts[0], call, positions), parts[1]}, -1);
  }

  Options options_;
  int64_t shared_dim_;
  double scale_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, content_bias_{nullptr};
  Tensor mixing_;  // [H,R]
};

const RegisterHeads<Collaborative> registered("collaborative",
                                              "heads mix one shared space of queries and keys");

}  // namespace
}  // namespace headlab
