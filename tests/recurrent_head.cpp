// Heads without a map of weights: each keeps a matrix S_h [d,e] that forgets (retention, arXiv
// 2307.08621, with a learned rate),
//   S_t = g_h S_(t-1) + k_t v_t^T,   o_t = q_t S_t / sqrt d,   g_h = sigmoid(rate_h),
// so that time and memory of a token do not grow with the text behind it.
#include <cmath>

#include "core/head_kinds.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct RecurrentOptions : HeadOptions {
  // No map over tokens: no window, no bias on scores, and a mask of keys alone; nothing to rotate.
  HeadTraits traits() const override {
    return {.map = HeadMap::kNone,
            .windows = false,
            .biases = false,
            .masks = HeadMasks::kKeys,
            .bidirectional = false,
            .cross = false,
            .rotary = false,
            .inputs = false};
  }
};

class Recurrent : public AttentionHeads {
 public:
  using Options = RecurrentOptions;

  Recurrent(const HeadShape& shape, const Options& options)
      : AttentionHeads(shape, options.traits()) {
    const int64_t width = shape.heads * shape.head_dim;
    q_ = projection("q", shape.d_model, width, /*bias=*/false, rows_of_heads());
    k_ = projection("k", shape.d_model, width, /*bias=*/false, rows_of_heads());
    v_ = projection("v", shape.d_model, width, /*bias=*/false, rows_of_heads());
    for (auto* linear : {&q_, &k_, &v_}) init_input(*linear, shape);
    rate_ = parameter("rate", at::linspace(1, 4, shape.heads), heads_along({0}));  // [H]
    init_output(output_projection(width, /*bias=*/false), shape);
  }

  std::vector<Statistic> own_statistics() const override {
    return {head_statistic("memory", "tokens", "how far back a head remembers", "1 / (1 - g)")};
  }

  // Linear in T: four projections, and for each token a product into S and one out of it.
  double flops(int64_t T, int64_t, double) const override {
    const auto width = static_cast<double>(shape_.heads * shape_.head_dim);
    const auto D = static_cast<double>(shape_.d_model), d = static_cast<double>(shape_.head_dim);
    return static_cast<double>(T) * (8 * D * width + 4 * width * d);
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = of_heads(q_, x);  // [B,H,T,d]
    auto k = of_heads(k_, x);        // [B,H,T,d]
    const auto v = of_heads(v_, x);  // [B,H,T,e]
    auto mask = call.mask;
    mask.causal = false;  // what is left of it hides keys from all queries: padding, or [B,1,1,S]
    const int64_t T = q.size(2), S = T + (call.cache ? call.cache->length() : 0);
    if (const auto seen = allowed_keys(mask, T, S, x.device()); seen.defined())
      k = k * seen.expand({-1, -1, -1, S})
                  .select(2, 0)
                  .narrow(-1, S - T, T)
                  .unsqueeze(-1)
                  .to(k.scalar_type());
    const auto forget = rate_.sigmoid();                   // [H]
    const auto g = forget.view({-1, 1, 1}).to(x.dtype());  // [H,1,1]
    auto state = call.cache ? call.cache->state("state") : Tensor();
    if (!state.defined())
      state = k.new_zeros({k.size(0), k.size(1), k.size(3), v.size(3)});  // [B,H,d,e]
    std::vector<Tensor> rows;
    for (int64_t t = 0; t < T; ++t) {
      state = g * state + at::matmul(k.select(2, t).unsqueeze(-1), v.select(2, t).unsqueeze(-2));
      rows.push_back(at::matmul(q.select(2, t).unsqueeze(-2), state));  // [B,H,1,e]
    }
    if (call.cache) call.cache->state("state") = state;
    if (call.observer && call.observer->wants_statistics())
      call.observer->report("memory", 1 / (1 - forget.detach()), at::ones_like(forget));
    const double scale = 1 / std::sqrt(static_cast<double>(shape_.head_dim));
    return {.y = output(at::cat(rows, 2) * scale, call)};  // [B,T,D]
  }

  // [B,T,D] -> [B,H,T,d]
  Tensor of_heads(Linear& linear, const Tensor& x) const {
    return linear(x).view({x.size(0), x.size(1), shape_.heads, shape_.head_dim}).transpose(1, 2);
  }

  Linear q_{nullptr}, k_{nullptr}, v_{nullptr};
  Tensor rate_;  // [H]
};

const RegisterHeads<Recurrent> recurrent("recurrent", "heads that keep a state and no map");

}  // namespace
}  // namespace headlab
