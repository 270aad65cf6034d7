// Collaborative heads: one query space and one key space of R features for all heads; a head is a
// vector that says how strongly it uses each of these features.
//
// Cordonnier, Loukas, Jaggi, "Multi-Head Attention: Collaborate Instead of Concatenate", arXiv
// 2006.16362, equations (6) and (7): head h has the logits (Q diag(mixing[h]) K^T + c_h) scale,
// with c = y content_bias^T a bias of each key alone. Values and output projection stay ordinary.
// The authors' codes scale by (R/H)^-0.5 (`scale: shared`) or by head_dim^-0.5 (`scale: head`).
#include <cmath>

#include "core/heads.h"
#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {
namespace {

// `scale: head`, `scale: shared`, or a number.
class Scale : public CustomField {
 public:
  double value(const HeadShape& shape, int64_t shared_dim) const {
    if (number_) return *number_;
    if (rule_ == "head") return 1 / std::sqrt(shape.head_dim);
    return std::sqrt(static_cast<double>(shape.heads) / static_cast<double>(shared_dim));
  }

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override {
    Problems no_number;
    double number = 0;
    if (read_value(number, node, path, no_number)) {
      number_ = number;
    } else if (node.text == "head" || node.text == "shared") {
      number_.reset();
      rule_ = node.text;
    } else {
      problems.add(
          node.place, path,
          "must be head, shared or a number" + did_you_mean(node.text, {"head", "shared"}));
    }
  }
  ConfigNode write() const override { return number_ ? write_number(*number_) : write_text(rule_); }
  std::string type() const override { return "head, shared or number"; }
  std::string schema() const override {
    return R"({"anyOf": [{"enum": ["head", "shared"]}, {"type": "number"}]})";
  }

 private:
  std::string rule_ = "head";
  std::optional<double> number_;
};

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
  struct Options : HeadOptions {
    std::optional<int64_t> shared_dim;
    bool content_bias = true;
    Scale scale;
    bool v_bias = true, o_bias = true;
    std::string mixing_init = "normal";

    void visit(Fields& f) override {
      f("shared_dim", shared_dim,
        "query and key features that all heads share, R (default: heads * head_dim)", at_least(1));
      f("content_bias", content_bias, "a learned bias of each key for each head, inside the scale");
      f("scale", scale, "factor on the scores: head = head_dim^-0.5, shared = (R/heads)^-0.5");
      f("v_bias", v_bias, "bias on the values");
      f("o_bias", o_bias, "bias on the output projection");
      f("mixing_init", mixing_init,
        "start of the mixing: normal std 0.2, concatenate = a block of features for each head, "
        "ones, linear = uniform +-R^-0.5, xavier = uniform",
        one_of({"normal", "concatenate", "ones", "linear", "xavier"}));
    }
    int64_t features(const HeadShape& s) const { return shared_dim.value_or(s.heads * s.head_dim); }
  };

  Collaborative(const HeadShape& s, const Options& options)
      : AttentionHeads(s, options.traits()),
        options_(options),
        shared_dim_(options.features(s)),
        scale_(options.scale.value(s, shared_dim_)) {
    q_ = projection("q", s.d_model, shared_dim_, false);
    k_ = projection("k", s.d_model, shared_dim_, false);
    v_ = projection("v", s.d_model, s.heads * s.head_dim, options.v_bias);
    o_ = projection("o", s.heads * s.head_dim, s.d_model, options.o_bias);
    mixing_ =
        register_parameter("mixing", initial_mixing(options.mixing_init, s.heads, shared_dim_));
    if (options.content_bias) content_bias_ = projection("content_bias", s.d_model, s.heads, false);
  }

  std::shared_ptr<AttentionHeads> slice() const override {
    const Kept kept = kept_heads();
    auto options = options_;
    options.shared_dim = shared_dim_;  // the features are everybody's: q and k stay
    auto sliced = std::make_shared<Collaborative>(kept.shape, options);
    sliced->scale_ = scale_;  // that of the heads as built
    sliced->adopt_indices(*this, kept);
    at::NoGradGuard no_grad;
    sliced->q_->weight.copy_(q_->weight);
    sliced->k_->weight.copy_(k_->weight);
    keep_heads(sliced->mixing_, mixing_, kept.rows);
    if (content_bias_) copy_heads(sliced->content_bias_, content_bias_, kept.rows, 1);
    copy_heads(sliced->v_, v_, kept.rows, shape_.head_dim);
    copy_head_columns(sliced->o_, o_, kept.rows, shape_.head_dim);
    return sliced;
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
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    if (ctx.probe) ctx.probe->output_weight(o_->weight);
    const auto q = mixed_queries(x, ctx);  // [B,H,T,R+H]
    const auto k = shared_keys(x, ctx);    // [B,H,S,R+H]
    const auto v = remembered(
        ctx, "v", [&] { return split_heads(v_(source(x, ctx)), shape_.heads); });  // [B,H,S,d]
    const auto heads = attend(q, k, v, ctx, scale_);                               // [B,H,T,d]
    return {.y = o_(merge_heads(heads, ctx))};                                     // [B,T,D]
  }

  // q k^T also adds the content bias: each query ends in the one-hot of its head, each key in the
  // biases c of all heads. What is joined is joined before the heads differ, where it is small.
  Tensor mixed_queries(const Tensor& x, const HeadContext& ctx) {
    auto shared = q_(x).unsqueeze(1);                             // [B,1,T,R]
    auto mixing = mixing_.to(shared.scalar_type()).unsqueeze(1);  // [H,1,R]
    if (content_bias_) {
      const int64_t H = shape_.heads;
      shared = at::cat({shared, shared.new_ones({x.size(0), 1, x.size(1), H})}, -1);
      mixing = at::cat({mixing, at::eye(H, mixing.options()).unsqueeze(1)}, -1);
    }
    return rotated(shared * mixing, ctx, ctx.positions);  // [B,H,T,R+H]
  }

  // One head of keys, seen by every query head. The cache holds R + H numbers a token.
  Tensor shared_keys(const Tensor& x, const HeadContext& ctx) {
    const auto k = remembered(ctx, "k", [&] {
      auto weight = k_->weight;
      if (content_bias_) weight = at::cat({weight, content_bias_->weight});
      const auto shared = project(source(x, ctx), weight).unsqueeze(1);  // [B,1,S,R+H]
      return rotated(shared, ctx, key_positions(ctx));
    });
    return k.expand({-1, shape_.heads, -1, -1});  // [B,H,S,R+H]
  }

  // Queries turn after they are mixed, or logits would depend on more than distance. The content
  // bias, behind the R features, never does.
  Tensor rotated(const Tensor& t, const HeadContext& ctx, const Tensor& positions) const {
    if (!ctx.rotary || !content_bias_) return rotate(t, ctx, positions);
    const auto parts = t.split_with_sizes({shared_dim_, shape_.heads}, -1);
    return at::cat({rotate(parts[0], ctx, positions), parts[1]}, -1);
  }

  Options options_;
  int64_t shared_dim_;
  double scale_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr}, content_bias_{nullptr};
  Tensor mixing_;  // [H,R]
};

const RegisterHeads<Collaborative> registered("collaborative",
                                              "heads mix one shared space of queries and keys");

}  // namespace
}  // namespace headlab
