// Heads without a map of weights: each keeps a matrix S_h [d,e] that forgets (retention, arXiv
// 2307.08621, with a learned rate): S_t = g_h S_(t-1) + k_t v_t^T,   o_t = q_t S_t / sqrt d.
#include <cmath>

#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct RecurrentOptions : HeadOptions {
  HeadTraits traits() const override {
    HeadTraits t{.map = HeadMap::kNone, .masks = HeadMasks::kKeys, .bidirectional = false};
    t.windows = t.biases = t.cross = t.rotary = t.inputs = false;
    return t;
  }
};

class Recurrent : public AttentionHeads {
 public:
  using Options = RecurrentOptions;
  Recurrent(const HeadShape& s, const Options& options) : AttentionHeads(s, options.traits()) {
    const int64_t width = s.heads * s.head_dim;
    q_ = projection("q", s.d_model, width, /*bias=*/false, rows_of_heads());
    k_ = projection("k", s.d_model, width, /*bias=*/false, rows_of_heads());
    v_ = projection("v", s.d_model, width, /*bias=*/false, rows_of_heads());
    rate_ = parameter("rate", at::linspace(1, 4, s.heads), heads_along({0}));  // [H]
    init_projections({&q_, &k_, &v_}, output_projection(width, /*bias=*/false), s);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = split_heads(q_(x), shape_.heads), v = split_heads(v_(x), shape_.heads);
    auto k = split_heads(k_(x), shape_.heads);  // [B,H,T,d]
    auto mask = call.mask;
    mask.causal = false;  // what is left of it hides keys from all queries: padding, or [B,1,1,S]
    LayerCache none;
    auto& cache = call.cache ? *call.cache : none;
    const int64_t T = q.size(2), S = cache.length() + T;
    if (const auto seen = allowed_keys(mask, T, S, x.device()); seen.defined())
      k = k * seen.expand({-1, -1, -1, S}).select(2, 0).narrow(-1, S - T, T).unsqueeze(-1);
    const auto g = rate_.sigmoid().view({-1, 1, 1}).to(k.scalar_type());  // [H,1,1]
    auto& state = cache.state("state");                                   // [B,H,d,e]
    if (!state.defined()) state = at::zeros_like(at::matmul(k.transpose(2, 3), v));
    std::vector<Tensor> rows;
    for (int64_t t = 0; t < T; ++t) {
      state = g * state + at::matmul(k.narrow(2, t, 1).transpose(2, 3), v.narrow(2, t, 1));
      rows.push_back(at::matmul(q.narrow(2, t, 1), state) / std::sqrt(shape_.head_dim));
    }
    return {.y = output(at::cat(rows, 2), call)};  // [B,T,D]
  }

  Linear q_{nullptr}, k_{nullptr}, v_{nullptr};
  Tensor rate_;  // [H]
};

const RegisterHeads<Recurrent> recurrent("recurrent", "heads that keep a state and no map");

}  // namespace
}  // namespace headlab
