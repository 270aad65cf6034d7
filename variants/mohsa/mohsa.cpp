// Overlapped heads: each head also sees o features of either neighbour, in queries, keys and
// values.
//
// Zhang et al., "Improving Vision Transformers by Overlapping Heads in Multi-Head Self-Attention",
// arXiv 2410.14874. With q, k, v padded by o zeros on either side, head i owns the features
// i*d .. (i+1)*d + 2o of each, and the output projection grows to H (d + 2o) columns. The scale
// stays that of the original head, d^-0.5. `pre` and `post` are CaiT's talking heads (Touvron et
// al., arXiv 2103.17239): logits, and weights after softmax and dropout, are mixed by [from, to].
#include <cmath>

#include "core/attention/composed/composition.h"
#include "core/attention/maps/map.h"
#include "core/attention/paths/paths.h"
#include "core/attention/weight_dropout.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/mohsa/integer_or_block.h"

namespace headlab {
namespace {

// Of features by layer: `overlap: {direction: up, start: 0, every: 1}`.
struct Schedule : Block {
  std::string direction = "up";
  int64_t start = 0, every = 1;

  void visit(Fields& f) override {
    f("direction", direction, "whether the overlap grows or shrinks with depth",
      one_of({"up", "down"}));
    f("start", start, "overlap of the first layer (of the last one when shrinking)", at_least(0));
    f("every", every, "layers to a step of one feature", at_least(1));
  }
  int64_t at(const HeadShape& shape) const {
    const int64_t depth = direction == "up" ? shape.layer : shape.layers - 1 - shape.layer;
    return depth / every + start;
  }
};

// Head i's features i*d - o .. (i+1)*d + o of the H*d there are; -1 beyond them. [H, d + 2o]
Tensor all_windows(int64_t heads, int64_t d, int64_t o) {
  const auto index = (at::arange(heads) * d).unsqueeze(1) + at::arange(-o, d + o);
  return index.masked_fill((index < 0) | (index >= heads * d), -1);
}

class Mohsa : public AttentionHeads {
 public:
  struct Options : HeadOptions {
    IntegerOrBlock<Schedule> overlap{1};
    bool qkv_bias = false, o_bias = true, pre = false, post = false;
    MapBlock map;

    void visit(Fields& f) override {
      f("overlap", overlap,
        "features seen of either neighbour; or {direction: up | down, start, every} by layer");
      f("qkv_bias", qkv_bias, "biases on q, k and v");
      f("o_bias", o_bias, "bias on the output projection");
      f("pre", pre, "heads mix their scores before the softmax");
      f("post", post, "heads mix their weights after the softmax");
      f("map", map, kMapHelp);
    }
    HeadTraits traits() const override {
      return map.options().limit(
          {.independent = !pre && !post, .rows_sum_to_one = !post, .own_values = true});
    }
    std::optional<InitDifferences> init_differences() const override {
      return InitDifferences{
          {"q, k, v, o", "uniform, +-1 / sqrt(inputs), biases too", "as plain heads"},
          {"pre, post", "N(0, 1)", "identity"}};
    }
    int64_t features(const HeadShape& shape) const {
      return overlap.number.value_or(overlap.block.at(shape));
    }
  };

  Mohsa(const HeadShape& s, const Options& options) : Mohsa(s, options, s.heads * s.head_dim, {}) {}

  // A sliced layer: `features` rows of q, k and v are left, head i reads window[i] of them.
  Mohsa(const HeadShape& s, const Options& options, int64_t features, const Tensor& window)
      : AttentionHeads(s, options.traits()),
        options_(options),
        overlap_(options.features(s)),
        width_(s.head_dim + 2 * overlap_) {
    // Heads share rows of q, k and v with their neighbours: sliced() knows which.
    q_ = projection("q", s.d_model, features, options.qkv_bias, shared_by_heads());
    k_ = projection("k", s.d_model, features, options.qkv_bias, shared_by_heads());
    v_ = projection("v", s.d_model, features, options.qkv_bias, shared_by_heads());
    output_projection(s.heads * width_, options.o_bias);
    if (s.init_as_host) init_projections({&q_, &k_, &v_}, o_, s);
    const auto mixing = [&](const char* name) {
      const auto start = s.init_as_host ? at::eye(s.heads) : at::randn({s.heads, s.heads});
      return parameter(name, start, heads_along({0, 1}));
    };
    if (options.pre) pre_ = mixing("pre");
    if (options.post) post_ = mixing("post");
    if (window.defined()) window_ = index_buffer("window", window);
    set_map(options.map.options());
  }

  std::optional<HeadMatrices> matrices() const override {
    const int64_t D = shape_.d_model, H = shape_.heads;
    const int64_t features = q_->weight.size(0);
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
    const double features = q_->weight.size(0);
    const double mixings = (pre_.defined() ? 1 : 0) + (post_.defined() ? 1 : 0);
    return 2 * ((T + 2.0 * S) * D * features + 2 * pairs * H * width + pairs * H * H * mixings +
                T * H * width * D);
  }

  std::vector<Statistic> own_statistics() const override {
    return options_.post ? composed_statistics() : std::vector<Statistic>{};
  }

 private:
  // The windows of the heads that are left, [alive, d+2o], and the rows of q, k and v they read.
  std::pair<Tensor, Tensor> windows_left(const SlicePlan& plan) const {
    const auto windows = own_windows().index_select(0, at::tensor(plan.rows, at::kLong));
    return {windows,
            std::get<0>(at::_unique(windows.masked_select(windows >= 0), /*sorted=*/true))};
  }

  std::shared_ptr<AttentionHeads> sliced_shell(const SlicePlan& plan) const override {
    const auto [windows, rows] = windows_left(plan);
    return std::make_shared<Mohsa>(plan.shape, options_, rows.size(0),
                                   at::searchsorted(rows, windows).masked_fill(windows < 0, -1));
  }

  Tensor sliced(const std::string& name, const Tensor& whole,
                const SlicePlan& plan) const override {
    const bool of_features =
        name.starts_with("q.") || name.starts_with("k.") || name.starts_with("v.");
    if (!of_features) return AttentionHeads::sliced(name, whole, plan);
    return whole.index_select(0, windows_left(plan).second.to(whole.device()));
  }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto& y = source(x, call);
    const auto q = from_inputs(Input::kQuery, x, call, [&](const Tensor& from) {
      return rotate(windows(padded(q_(from))), call, call.positions);
    });  // [B,H,T,d+2o]
    const auto k = from_inputs(Input::kKey, y, call, [&](const Tensor& from) {
      return keys(from, call);
    });  // [B,H,S,d+2o]
    const auto v = from_inputs(Input::kValue, y, call, [&](const Tensor& from) {
      return windows(cached(call, "v", [&] { return padded(v_(from)); }));
    });  // [B,H,S,d+2o]
    const double scale = 1 / std::sqrt(shape_.head_dim);
    const auto pre = Composition::by_matrix(pre_, {}, call.alive),
               post = Composition::by_matrix(post_, {}, call.alive);
    const auto heads = options_.post && call.dropout > 0
                           ? attend_dropped(q, k, v, pre, post, call, scale)
                           : composed_attend(q, k, v, pre, post, call, scale).out;
    return {.y = output(heads, v, call)};  // [B,T,D]
  }

  // Rotated windows are remembered as such; a rotation before the cut would tear pairs apart.
  Tensor keys(const Tensor& y, const HeadCall& call) {
    if (!call.rotary) return windows(cached(call, "k", [&] { return padded(k_(y)); }));
    return cached(call, "k",
                  [&] { return rotate(windows(padded(k_(y))), call, key_positions(call)); });
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

  // Weights are dropped before `post` mixes them, not behind it.
  static Tensor attend_dropped(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Composition& pre, const Composition& post,
                               const HeadCall& call, double scale) {
    require_maps(call.backend, "heads that are mixed");
    const auto maps = composed_maps(q, k, pre, {}, call, scale);
    const auto& p = maps.weights;  // [B,H,T,S]
    const auto allowed = allowed_keys(call.mask, p.size(2), p.size(3), p.device());
    const auto kept = dropout(p, weight_dropout(call.dropout, call.rng));
    const auto a = composed_weights(kept, post, allowed);
    const auto out = at::matmul(a.to(v.scalar_type()), v);  // [B,H,T,d+2o]
    if (call.observer)
      observe_weights({.scores = maps.scores,
                       .p = p,
                       .a = composed_weights(p, post, allowed),
                       .v = v,
                       .out = out},
                      call);
    return out;
  }

  Options options_;
  int64_t overlap_, width_;  // o, d + 2o
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr};
  Tensor pre_, post_;  // [H,H] from, to
  Tensor window_;      // [H, d+2o] rows of q, k, v; -1: zero. Undefined until sliced
};

const RegisterHeads<Mohsa> registered("mohsa", "heads overlap with their neighbours");

}  // namespace
}  // namespace headlab
