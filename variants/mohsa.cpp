// Overlapped heads: each head also sees o features of either neighbour, in queries, keys and
// values.
//
// Zhang et al., "Improving Vision Transformers by Overlapping Heads in Multi-Head Self-Attention",
// arXiv 2410.14874. With q, k, v padded by o zeros on either side, head i owns the features
// i*d .. (i+1)*d + 2o of each, and the output projection grows to H (d + 2o) columns. The scale
// stays that of the original head, d^-0.5. `pre` and `post` are CaiT's talking heads (Touvron et
// al., arXiv 2103.17239): logits, and weights after softmax and dropout, are mixed by [from, to].
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/attention/mix_heads.h"
#include "core/heads.h"
#include "core/observe/probe.h"
#include "core/torch.h"

namespace headlab {
namespace {

// `overlap: 2`, or by layer `overlap: {direction: up, start: 0, every: 1}`.
class Overlap : public CustomField {
 public:
  int64_t at(const HeadShape& shape) const {
    if (features_) return *features_;
    const auto& s = schedule_;
    const int64_t depth = s.direction == "up" ? shape.layer : shape.layers - 1 - shape.layer;
    return depth / s.every + s.start;
  }

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override {
    if (node.kind == ConfigNode::Kind::kMapping) {
      features_.reset();
      read_block(schedule_, node, path, problems);
    } else if (node.kind == ConfigNode::Kind::kScalar) {
      read_value(features_.emplace(), node, path, problems, at_least(0));
    } else {
      problems.add(node.place, path,
                   "must be a number of features, or a mapping with direction, start and every");
    }
  }
  ConfigNode write() const override {
    if (features_) return write_integer(*features_);
    auto schedule = schedule_;
    return write_block(schedule);
  }
  std::string type() const override { return "integer or schedule"; }
  std::string schema() const override {
    const auto count = [](int least) {
      return nlohmann::ordered_json{{"type", "integer"}, {"minimum", least}};
    };
    nlohmann::ordered_json schedule{{"type", "object"}, {"additionalProperties", false}};
    schedule["properties"] = {
        {"direction", {{"enum", {"up", "down"}}}}, {"start", count(0)}, {"every", count(1)}};
    return nlohmann::ordered_json{{"anyOf", {count(0), schedule}}}.dump();
  }

 private:
  struct Schedule : Block {
    std::string direction = "up";
    int64_t start = 0, every = 1;
    void visit(Fields& f) override {
      f("direction", direction, "whether the overlap grows or shrinks with depth",
        one_of({"up", "down"}));
      f("start", start, "overlap of the first layer (of the last one when shrinking)", at_least(0));
      f("every", every, "layers to a step of one feature", at_least(1));
    }
  };
  std::optional<int64_t> features_ = 1;
  Schedule schedule_;
};

// Head i's features i*d - o .. (i+1)*d + o of the H*d there are; -1 beyond them. [H, d + 2o]
Tensor all_windows(int64_t heads, int64_t d, int64_t o) {
  const auto index = (at::arange(heads) * d).unsqueeze(1) + at::arange(-o, d + o);
  return index.masked_fill((index < 0) | (index >= heads * d), -1);
}

class Mohsa : public AttentionHeads {
 public:
  struct Options : HeadOptions {
    Overlap overlap;
    bool qkv_bias = false, o_bias = true, pre = false, post = false;

    void visit(Fields& f) override {
      f("overlap", overlap,
        "features seen of either neighbour; or {direction: up | down, start, every} by layer");
      f("qkv_bias", qkv_bias, "biases on q, k and v");
      f("o_bias", o_bias, "bias on the output projection");
      f("pre", pre, "heads mix their scores before the softmax");
      f("post", post, "heads mix their weights after the softmax");
    }
    HeadTraits traits() const override {
      return {.independent = !pre && !post, .rows_sum_to_one = !post};
    }
  };

  Mohsa(const HeadShape& s, const Options& options) : Mohsa(s, options, s.heads * s.head_dim, {}) {}

  // A sliced layer: `features` rows of q, k and v are left, head i reads window[i] of them.
  Mohsa(const HeadShape& s, const Options& options, int64_t features, const Tensor& window)
      : AttentionHeads(s, options.traits()),
        options_(options),
        overlap_(options.overlap.at(s)),
        width_(s.head_dim + 2 * overlap_) {
    q_ = projection("q", s.d_model, features, options.qkv_bias);
    k_ = projection("k", s.d_model, features, options.qkv_bias);
    v_ = projection("v", s.d_model, features, options.qkv_bias);
    o_ = projection("o", s.heads * width_, s.d_model, options.o_bias);
    if (options.pre) pre_ = register_parameter("pre", at::randn({s.heads, s.heads}));
    if (options.post) post_ = register_parameter("post", at::randn({s.heads, s.heads}));
    if (window.defined()) window_ = index_buffer("window", window);
  }

  std::shared_ptr<AttentionHeads> slice() const override {
    const Kept kept = kept_heads();
    const auto old =
        own_windows().index_select(0, at::tensor(kept.rows, at::kLong));  // [alive, d+2o]
    const auto read = std::get<0>(at::_unique(old.masked_select(old >= 0), /*sorted=*/true));
    const auto window = at::searchsorted(read, old).masked_fill(old < 0, -1);

    auto sliced = std::make_shared<Mohsa>(kept.shape, options_, read.size(0), window);
    sliced->adopt_indices(*this, kept);
    const std::vector<int64_t> rows(read.data_ptr<int64_t>(),
                                    read.data_ptr<int64_t>() + read.numel());
    copy_heads(sliced->q_, q_, rows, 1);
    copy_heads(sliced->k_, k_, rows, 1);
    copy_heads(sliced->v_, v_, rows, 1);
    copy_head_columns(sliced->o_, o_, kept.rows, width_);
    keep_mixing(sliced->pre_, pre_, kept.rows);
    keep_mixing(sliced->post_, post_, kept.rows);
    return sliced;
  }

  std::optional<HeadMatrices> matrices() const override {
    const int64_t D = shape_.d_model, H = shape_.heads;
    const int64_t features = q_->options.out_features();
    const auto index =
        own_windows().remainder(features + 1).flatten();  // none: the zero at the end
    const auto of_heads = [&](const Linear& linear) {
      return at::constant_pad_nd(linear->weight.detach(), {0, 0, 0, 1})
          .index_select(0, index.to(linear->weight.device()))
          .view({H, width_, D});
    };
    return HeadMatrices{.q = of_heads(q_),
                        .k = of_heads(k_),
                        .v = of_heads(v_),
                        .o = o_->weight.detach().view({D, H, width_}).transpose(0, 1)};
  }

  int64_t value_width() const override { return width_; }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const double D = shape_.d_model, H = shape_.heads, width = width_;
    const double features = q_->options.out_features();
    const double mixings = (pre_.defined() ? 1 : 0) + (post_.defined() ? 1 : 0);
    return 2 * ((T + 2.0 * S) * D * features + 2 * pairs * H * width + pairs * H * H * mixings +
                T * H * width * D);
  }

  std::vector<Statistic> own_statistics() const override {
    return options_.post ? composed_statistics() : std::vector<Statistic>{};
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    if (ctx.probe) ctx.probe->output_weight(o_->weight);
    const auto& y = source(x, ctx);
    const auto q = rotate(windows(padded(q_(x))), ctx, ctx.positions);            // [B,H,T,d+2o]
    const auto k = keys(y, ctx);                                                  // [B,H,S,d+2o]
    const auto v = windows(remembered(ctx, "v", [&] { return padded(v_(y)); }));  // [B,H,S,d+2o]
    const double scale = 1 / std::sqrt(shape_.head_dim);
    const auto heads = options_.pre || options_.post ? attend_mixed(q, k, v, ctx, scale)
                                                     : attend(q, k, v, ctx, scale);
    return {.y = o_(merge_heads(heads, ctx))};  // [B,T,D]
  }

  // Rotated windows are remembered as such; a rotation before the cut would tear pairs apart.
  Tensor keys(const Tensor& y, const HeadContext& ctx) {
    if (!ctx.rotary) return windows(remembered(ctx, "k", [&] { return padded(k_(y)); }));
    return remembered(ctx, "k",
                      [&] { return rotate(windows(padded(k_(y))), ctx, key_positions(ctx)); });
  }

  // The zeros that windows read beyond the features: o on either side, or one for all at the end of
  // what a slice kept. [B,S,features] -> [B,1,S,.], as the cache keeps it.
  Tensor padded(const Tensor& t) const {
    const bool whole = !window_.defined();
    return at::constant_pad_nd(t, {whole ? overlap_ : 0, whole ? overlap_ : 1}).unsqueeze(1);
  }

  // Rows of q, k and v that each head reads, on the CPU: [H, d+2o].
  Tensor own_windows() const {
    return window_.defined() ? window_.to(at::kCPU)
                             : all_windows(shape_.heads, shape_.head_dim, overlap_);
  }

  Tensor windows(const Tensor& padded) const {
    const auto t = padded.squeeze(1);                               // [B,S,.]
    if (!window_.defined())                                         // a view
      return t.unfold(2, width_, shape_.head_dim).transpose(1, 2);  // [B,H,S,d+2o]
    const auto index = window_.remainder(t.size(2)).flatten();      // -1: the zero at the end
    return split_heads(t.index_select(2, index), shape_.heads);     // [B,H,S,d+2o]
  }

  Tensor attend_mixed(const Tensor& q, const Tensor& k, const Tensor& v, const HeadContext& ctx,
                      double scale) const {
    auto z = scaled_products(q, k, ctx, scale);  // [B,H,T,S]
    if (pre_.defined()) z = mix_heads(z, pre_, {}, ctx.alive);
    const auto allowed = allowed_keys(ctx.mask, q.size(2), k.size(2), q.device());
    const auto p = masked_softmax(add_biases(z, ctx), allowed);
    const auto mixed = [&](const Tensor& weights) {
      if (!post_.defined()) return weights;
      const auto a = mix_heads(weights, post_, {}, ctx.alive);
      return allowed.defined() ? a.masked_fill(allowed.logical_not(), 0) : a;
    };
    const auto a = mixed(dropout(p, ctx.dropout, ctx.rng, CounterRng::kAttentionDropout));
    const auto out = at::matmul(a.to(v.scalar_type()), v);  // [B,H,T,d+2o]
    if (ctx.probe) ctx.probe->weights(p, ctx.dropout > 0 ? mixed(p) : a, v, out, ctx);
    return out;
  }

  Options options_;
  int64_t overlap_, width_;  // o, d + 2o
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  Tensor pre_, post_;  // [H,H] from, to
  Tensor window_;      // [H, d+2o] rows of q, k, v; -1: zero. Undefined until sliced
};

const RegisterHeads<Mohsa> registered("mohsa", "heads overlap with their neighbours");

}  // namespace
}  // namespace headlab
