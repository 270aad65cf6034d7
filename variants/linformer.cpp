// Linformer: keys and values are compressed along the sequence before they are projected.
//
// Wang et al., "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768, equation (7).
// With m the memory, or x itself, and e, f [N,P], of which S tokens use the first S rows:
//
//     K = (e^T m) Wk^T + bk,    V = (f^T m) Wv^T + bv,    A = softmax(q K^T / sqrt d)  [B,H,T,P]
//
// All heads share e and f; share_kv is the paper's key-value sharing, f = e. Tokens are compressed
// first, so that biases meet the P rows unscaled. Here hidden tokens are zeros before that; the
// authors let padding in.
#include <fmt/format.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/observe/probe.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

class Linformer : public ProjectedHeads {
 public:
  struct Options : BiasOptions {
    std::optional<int64_t> length, projected;
    bool share_kv = false;

    void visit(Fields& f) override {
      f("length", length, "longest sequence of keys (default: the model's context)", at_least(1));
      f("projected", projected, "rows it is compressed to (default: length / 4, at least 1)",
        at_least(1));
      f("share_kv", share_kv, "one compression e for keys and values; there is no f");
      BiasOptions::visit(f);
    }
    HeadTraits traits() const override {
      return {
          .token_map = false, .causal = false, .decodes = false, .grouped = true, .rotary = false};
    }
    int64_t rows(const HeadShape& shape) const { return length.value_or(shape.context); }
    int64_t columns(const HeadShape& shape) const {
      return projected.value_or(std::max<int64_t>(1, rows(shape) / 4));
    }
    void check_shape(const HeadShape& shape, const Complain& complain) const override {
      const int64_t N = rows(shape);  // 0 while the context is not known
      if (N > 0 && columns(shape) > N)
        complain("projected", fmt::format("{} is more than length {}; choose at most that many",
                                          columns(shape), N));
    }
  };

  Linformer(const HeadShape& shape, const Options& options)
      : ProjectedHeads(shape, options.traits(), options.projections()), options_(options) {
    const int64_t N = options.rows(shape), P = options.columns(shape);
    if (N == 0)
      throw ConfigError("linformer: length is not known without a model's context: write length");
    e_ = register_parameter("e", at::empty({N, P}));
    if (!options.share_kv) f_ = register_parameter("f", at::empty({N, P}));
    for (auto* compression : {&e_, &f_})
      if (compression->defined())
        torch::nn::init::xavier_uniform_(*compression, /*gain=*/1 / std::sqrt(2.0));
  }

  std::shared_ptr<AttentionHeads> slice() const override {
    const auto kept = kept_heads();
    auto sliced = slice_projections<Linformer>(options_, kept);
    sliced->e_.set_data(e_.detach().clone());
    if (f_.defined()) sliced->f_.set_data(f_.detach().clone());
    return sliced;
  }

  std::optional<HeadMatrices> matrices() const override { return std::nullopt; }

  double flops(int64_t T, int64_t S, double) const override {
    const double P = static_cast<double>(e_.size(1)), D = static_cast<double>(shape_.d_model);
    const double compressions = f_.defined() ? 2 : 1;
    return AttentionHeads::flops(T, P, T * P) + 2.0 * compressions * S * P * D;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadContext& ctx) override {
    const auto& tokens = source(x, ctx);
    const auto visible = visible_tokens(ctx.mask, tokens);  // [B,S]
    const auto m = visible.defined()                        // hidden tokens are zeros
                       ? tokens.masked_fill(visible.logical_not().unsqueeze(-1), 0)
                       : tokens;                                // [B,S,D]
    const auto for_k = compress(m, e_);                         // [B,P,D]
    const auto for_v = f_.defined() ? compress(m, f_) : for_k;  // [B,P,D]
    const auto q = queries(x, ctx);                             // [B,H,T,d]
    const auto k = split_heads(k_(for_k), shape_.kv_heads);     // [B,Hkv,P,d]
    const auto v = split_heads(v_(for_v), shape_.kv_heads);     // [B,Hkv,P,d]
    const auto slots = over_slots(ctx, for_k, visible);
    const double scale = 1 / std::sqrt(shape_.head_dim);
    const auto heads = attend(q, k, v, slots, scale);  // [B,H,T,d]
    if (ctx.probe) observe(*ctx.probe, q, k, v, heads, slots, scale);
    return {.y = output(heads, ctx)};  // [B,T,D]
  }

  // Bool, [B,S] or [1,S]; undefined where every token may be attended to.
  static Tensor visible_tokens(const AttentionMask& mask, const Tensor& tokens) {
    const int64_t S = tokens.size(1);
    const auto allowed = allowed_keys(mask, /*T=*/1, S, tokens.device());  // [B,1,1,S]
    if (!allowed.defined()) return allowed;
    return allowed.logical_and(at::ones({1, 1, 1, S}, allowed.options())).view({-1, S});
  }

  Tensor compress(const Tensor& m, const Tensor& compression) const {
    const int64_t S = m.size(1), N = compression.size(0);
    TORCH_CHECK(S <= N, "linformer: a sequence of ", S, " keys is longer than length ", N);
    return at::matmul(compression.narrow(0, 0, S).t(), m);  // [P,S] [B,S,D] -> [B,P,D]
  }

  // The call as attention over the P slots knows it: of the mask, whether any token is visible.
  static HeadContext over_slots(const HeadContext& ctx, const Tensor& compressed,
                                const Tensor& visible) {
    auto slots = ctx;
    slots.probe = nullptr;
    slots.memory = compressed;
    slots.mask = {};
    slots.mask.query_length = ctx.mask.query_length;
    if (visible.defined()) slots.mask.allowed = visible.any(1).view({-1, 1, 1, 1});
    return slots;
  }

  // Slots have neither places (the memory in `slots` says so) nor tokens nor classes.
  void observe(HeadProbe& probe, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& heads, const HeadContext& slots, double scale) const {
    const auto classes = std::exchange(probe.classes, Tensor());
    probe.output_weight(o_->weight);
    probe.softmax(q, k, v, heads, slots, scale);
    probe.classes = classes;
  }

  Options options_;
  Tensor e_, f_;
};

const RegisterHeads<Linformer> registered("linformer",
                                          "keys and values compressed to a fixed number of rows");

}  // namespace
}  // namespace headlab
