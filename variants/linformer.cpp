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

#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct LinformerOptions : BiasOptions, DerivedDefaults<HeadShape> {
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
    return {.map = HeadMap::kCompressed,
            .windows = false,
            .biases = false,
            .masks = HeadMasks::kKeys,
            .causal = false,
            .decodes = false,
            .grouped = true,
            .rotary = false};
  }
  void derive(const HeadShape& shape) override {
    if (rows(shape) == 0) return;  // without a model's context
    projected = columns(shape);
    length = rows(shape);
  }
  int64_t rows(const HeadShape& shape) const { return length.value_or(shape.context); }
  int64_t columns(const HeadShape& shape) const {
    return projected.value_or(std::max<int64_t>(1, rows(shape) / 4));
  }
  void check_shape(const HeadShape& shape, const HeadDemands&,
                   const Complain& complain) const override {
    const int64_t N = rows(shape);  // 0 while the context is not known
    if (N > 0 && columns(shape) > N)
      complain("projected", fmt::format("{} is more than length {}; choose at most that many",
                                        columns(shape), N));
  }
};

class Linformer : public ProjectedHeads<LinformerOptions> {
 public:
  Linformer(const HeadShape& shape, const Options& options) : ProjectedHeads(shape, options) {
    const int64_t N = options.rows(shape), P = options.columns(shape);
    if (N == 0)
      throw ConfigError("linformer: length is not known without a model's context: write length");
    e_ = parameter("e", at::empty({N, P}), shared_by_heads());
    if (!options.share_kv) f_ = parameter("f", at::empty({N, P}), shared_by_heads());
    for (auto* compression : {&e_, &f_})
      if (compression->defined())
        torch::nn::init::xavier_uniform_(*compression, /*gain=*/1 / std::sqrt(2.0));
  }

  std::optional<HeadMatrices> matrices() const override { return std::nullopt; }

  double flops(int64_t T, int64_t S, double) const override {
    const double P = static_cast<double>(e_.size(1)), D = static_cast<double>(shape_.d_model);
    const double compressions = f_.defined() ? 2 : 1;
    return projected_flops(T, P, T * P) + 2.0 * compressions * S * P * D;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto& tokens = source(x, call);
    const auto visible = visible_tokens(call.mask, tokens);  // [B,S]
    const auto seen = [&](const Tensor& m) {                 // hidden tokens are zeros
      return visible.defined() ? m.masked_fill(visible.logical_not().unsqueeze(-1), 0) : m;
    };
    Tensor shared;                    // what k and v are made of, where they are made of one
    const auto q = queries(x, call);  // [B,H,T,d]
    const auto k = from_inputs(Input::kKey, tokens, call, [&](const Tensor& from) {
      const auto for_k = compress(seen(from), e_);  // [B,P,D]
      if (!f_.defined() && !call.inputs) shared = for_k;
      return split_slots(k_(for_k));
    });  // [B,Hkv,P,d]
    const auto v = from_inputs(Input::kValue, tokens, call, [&](const Tensor& from) {
      const auto for_v =
          shared.defined() ? shared : compress(seen(from), f_.defined() ? f_ : e_);  // [B,P,D]
      return split_slots(v_(for_v));
    });  // [B,Hkv,P,d]
    const auto heads =
        attend(q, k, v, call.within(slots_of(call.mask, visible)), scale());  // [B,H,T,d]
    return {.y = output(heads, call)};                                        // [B,T,D]
  }

  std::optional<int64_t> longest() const override { return e_.size(0); }

  // [B,P,Hkv*d] -> [B,Hkv,P,d], also of no heads.
  Tensor split_slots(const Tensor& t) const {
    return split_heads(t, shape_.kv_heads, shape_.head_dim);
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

  // The P slots have no places. Of the mask they know whether any token is visible.
  static Scope slots_of(const AttentionMask& mask, const Tensor& visible) {
    Scope slots{.places = false};
    slots.mask.query_length = mask.query_length;
    if (visible.defined()) slots.mask.allowed = visible.any(1).view({-1, 1, 1, 1});
    return slots;
  }

  Tensor e_, f_;
};

const RegisterHeads<Linformer> registered("linformer",
                                          "keys and values compressed to a fixed number of rows");

}  // namespace
}  // namespace headlab
