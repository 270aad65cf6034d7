// Native sparse attention: every query sees compressed blocks of keys, the blocks that these point
// to, and a window.
//
// Yuan et al., "Native Sparse Attention", arXiv 2502.11089, equations (5) to (12). Query i of head
// h in block t = floor(i / b):
//   compressed  K_c = phi_k(k_cs .. k_cs+l-1), V_c likewise, seen when cs + l - 1 <= i
//               P = softmax_c(scale q K_c),   o1 = P V
//   selected    score_j = sum over the heads of a group and c of P_c m(c,j), m the number of chunks
//               of s tokens that c and block j share; the first blocks and the last up to t, then
//               the highest: n blocks.   o2 = softmax over their tokens <= i
//   window      o3 = softmax over i - W < j <= i
//   o = g1 o1 + g2 o2 + g3 o3,   g = sigmoid(x gate^T)

#include <algorithm>
#include <array>
#include <cmath>

#include "core/attention/maps/map.h"
#include "core/config/config.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/families/chosen_blocks.h"
#include "variants/nsa/compression.h"
#include "variants/nsa/options.h"
#include "variants/nsa/selection.h"
#include "variants/nsa/statistics.h"

namespace headlab {
namespace {

// Keys and values of the three branches [B,Hkv,.,d], and what compressed ones are made of: of
// those the first stands at place `first`, with its position [B,1,.,1] where keys turn as blocks.
struct BranchKeys {
  Tensor k, v, window_k, window_v, source_k, source_v, positions;
  int64_t first_k = 0, first_v = 0;
};

class Nsa : public AttentionHeads {
 public:
  using Options = NsaOptions;

  Nsa(const HeadShape& s, const Options& options)
      : AttentionHeads(s, traits_in(s, options)),
        options_(options),
        scale_(options.scale.value_or(1 / std::sqrt(static_cast<double>(s.head_dim)))) {
    const auto p = options.projections();
    const int64_t D = s.d_model, kv = branches() * s.kv_heads * s.head_dim;
    const HeadAxes of_branches{{.dim = 0, .group = kKvHeads, .repeat = branches()}};
    q_ = projection("q", D, s.heads * s.head_dim, p.qkv_bias, rows_of_heads());
    k_ = projection("k", D, kv, p.qkv_bias, of_branches);
    v_ = projection("v", D, kv, p.qkv_bias, of_branches);
    output_projection(s.heads * s.head_dim, p.o_bias);
    init_projections({&q_, &k_, &v_}, o_, s);
    gate_ = projection("gate", D, 3 * s.heads, options.gate_bias, rows_of_heads());
    init_normal(gate_, 0.02);
    compress_ = register_module("compress", Compression(options.compression(s)));
    for (const auto& name : compress_->by_head()) lay_out("compress." + name, rows_of_kv_heads());
    for (const auto& name : compress_->shared()) lay_out("compress." + name, shared_by_heads());
    if (!options.qk_norm) return;
    for (auto* norm : {&q_norm_, &k_norm_}) {
      const std::string name = norm == &q_norm_ ? "q_norm" : "k_norm";
      *norm = register_module(name, RmsNorm(at::IntArrayRef{s.head_dim}, options.qk_norm_eps));
      lay_out(name + ".weight", shared_by_heads());
    }
  }

  std::vector<Statistic> own_statistics() const override { return nsa_statistics(); }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto& o = options_;
    const auto numel = [](const Linear& linear) {
      return static_cast<double>(linear->weight.numel());
    };
    const double seen = pairs / static_cast<double>(o.stride) +
                        std::min(pairs, 1.0 * T * o.selected * o.block) +
                        std::min(pairs, 1.0 * T * o.window_tokens);
    const auto compressed = static_cast<double>(sizes().rate().entries(S));
    return 2.0 * T * (numel(q_) + numel(o_) + numel(gate_)) + 2.0 * S * (numel(k_) + numel(v_)) +
           compressed * compress_->flops() +
           4.0 * static_cast<double>(shape_.heads * shape_.head_dim) * seen;
  }

 private:
  // Heads of a group talk by their common choice.
  static HeadTraits traits_in(const HeadShape& s, const Options& options) {
    auto traits = options.traits();
    traits.independent = s.heads == s.kv_heads;
    return traits;
  }
  int64_t branches() const { return options_.separate() ? 3 : 1; }
  CompressedSizes sizes() const { return {options_.compress_block, options_.stride}; }

  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const int64_t B = x.size(0), T = x.size(1), H = shape_.heads;
    const auto gates = at::sigmoid(gate_(x)).view({B, T, H, 3});
    if (H == 0) return {.y = output(x.new_empty({B, 0, T, shape_.head_dim}), call), .gates = gates};
    const auto q = rotate(norm(q_norm_, split_heads(q_(x), H)), call, call.positions);
    const auto kv = keys_and_values(x, call);
    const PackedKeys tokens(call, B, kv.k.size(2));
    const auto [ck, cv] = compressed(kv, tokens, call);  // [B,Hkv,C,d]
    const auto rules = options_.rules();
    const int64_t S = kv.k.size(2);
    const bool chooses = rules.chooses(S), watched = call.observer;
    Tensor blocks;  // [B,Hkv,T,n]
    if (chooses || watched)
      blocks = choose_blocks(
          block_scores(q, ck, sizes(), rules.block, rules.blocks(S), tokens, call, scale_), rules,
          tokens);
    const auto of_heads = blocks.defined() ? repeat_kv(blocks, call.kv_map, H) : blocks;
    const auto quiet = call.unobserved();
    const std::array<Tensor, 3> said{
        attend_to_compressed(q, ck, cv, sizes(), tokens, quiet.with_seed(1), scale_),
        attend_to_chosen(q, kv.k, kv.v, chooses ? of_heads : Tensor(), rules, tokens, quiet,
                         scale_),
        attend_to_window(q, kv.window_k, kv.window_v, options_.window_tokens, tokens,
                         quiet.with_seed(2), scale_)};
    const auto gated = [&](int64_t n) {
      return said[n] * gates.select(3, n).transpose(1, 2).unsqueeze(3);  // [B,H,T,d]
    };
    const auto heads = (gated(0) + gated(1) + gated(2)).to(x.scalar_type());
    if (watched) {
      observe_choice(blocks, rules, S, call);
      report_choice(q, kv.k, of_heads, rules, tokens, call, scale_);
      observe(q, kv, chooses ? of_heads : Tensor(), tokens, heads, gates, call);
    }
    return {.y = output(heads, call), .gates = gates};  // [B,T,D]
  }

  Tensor norm(RmsNorm& norm, const Tensor& x) const { return norm ? norm(x) : x; }

  // Projected by branch: compressed, selected, window.
  BranchKeys keys_and_values(const Tensor& x, const HeadCall& call) {
    const int64_t Hkv = shape_.kv_heads, n = branches(), l = options_.compress_block;
    const auto raw = norm(k_norm_, split_heads(k_(x), n * Hkv));  // [B,n Hkv,T,d]
    const auto v = split_heads(v_(x), n * Hkv), k = rotate(raw, call, call.positions);
    const auto branch = [&](const Tensor& of, int64_t at) {
      return of.narrow(1, n == 1 ? 0 : at * Hkv, Hkv);
    };
    // A mask that hides tokens may need what lies further back.
    const bool masks = call.mask.allowed.defined();
    const auto kept = [&](const char* name, const Tensor& fresh, int64_t last) {
      return cached(
          call, name, [&] { return fresh; }, masks ? 0 : last);
    };
    const auto& of_source = options_.turns_blocks() ? raw : k;
    BranchKeys all;
    all.k = kept("k", branch(k, 1), 0), all.v = kept("v", branch(v, 1), 0);
    all.window_k = all.source_k = all.k, all.window_v = all.source_v = all.v;
    if (options_.separate()) {
      all.window_k = kept("window_k", branch(k, 2), options_.window_tokens);
      all.window_v = kept("window_v", branch(v, 2), options_.window_tokens);
      all.source_v = kept("source_v", branch(v, 0), l);
    }
    if (options_.separate() || options_.turns_blocks())
      all.source_k = kept("source_k", branch(of_source, 0), l);
    if (options_.turns_blocks()) {
      const auto places = call.positions.expand({x.size(0), x.size(1)}).unsqueeze(1).unsqueeze(3);
      all.positions = kept("positions", places, l);  // [B,1,.,1]
    }
    const int64_t seen = past_places(call) + x.size(1);
    all.first_k = seen - all.source_k.size(2), all.first_v = seen - all.source_v.size(2);
    return all;
  }

  // Those of all complete blocks. A mask that hides tokens moves blocks: then they are made anew.
  std::pair<Tensor, Tensor> compressed(const BranchKeys& kv, const PackedKeys& tokens,
                                       const HeadCall& call) {
    const auto rate = sizes().rate();
    const int64_t s = options_.stride;
    const auto key = [&](const Tensor& of, const Tensor& positions, int64_t first, int64_t count) {
      const auto made = compress_->keys(of, first, count);
      if (!options_.turns_blocks() || count <= 0) return made;
      const auto begins = at::arange(count, positions.options()) * s + first;
      return rotate(made, call, positions.squeeze(3).squeeze(1).index_select(1, begins));
    };
    const auto k = cached_at_rate(call, "compressed_k", rate, [&](int64_t first, int64_t count) {
      return key(kv.source_k, kv.positions, first * s - kv.first_k, count);
    });
    const auto v = cached_at_rate(call, "compressed_v", rate, [&](int64_t first, int64_t count) {
      return compress_->values(kv.source_v, first * s - kv.first_v, count);
    });
    if (!tokens.order.defined()) return {k, v};
    TORCH_CHECK(kv.first_k == 0 && kv.first_v == 0,
                "a mask that hides tokens must be given from the first pass with the cache on");
    const auto positions = kv.positions.defined() ? tokens.closed_up(kv.positions) : kv.positions;
    const int64_t count = rate.entries(kv.source_k.size(2));
    return {key(tokens.closed_up(kv.source_k), positions, 0, count),
            compress_->values(tokens.closed_up(kv.source_v), 0, count)};
  }

  // Map 0 is that of the selected branch, map 1 that of the window; both of what heads say in all.
  void observe(const Tensor& q, const BranchKeys& kv, const Tensor& blocks,
               const PackedKeys& tokens, const Tensor& heads, const Tensor& gates,
               const HeadCall& call) const {
    auto& observer = *call.observer;
    const at::NoGradGuard no_grad;
    const int64_t T = q.size(2), S = kv.k.size(2);
    if (!observer.wants_maps()) return;
    const bool whole = !blocks.defined() && !tokens.hidden_queries(T).defined();
    const auto chosen =
        whole ? call : masked_to_chosen(blocks, options_.rules(), tokens, call, T, S);
    observer.softmax({q, kv.k, kv.v, chosen, scale_}, heads);
    const auto window = windowed(call, tokens, options_.window_tokens, kv.window_k.size(2), T);
    const AttentionCall own(q, kv.window_k, kv.window_v, window, scale_);
    const auto z = own.scores(), p = masked_softmax(z, own.allowed_keys());  // [B,H,T,S]
    observer.weights({.p = p, .a = p, .scores = z, .v = kv.window_v, .out = heads, .map = 1},
                     window);
    if (!observer.wants_statistics()) return;
    const auto counted = counted_pairs(p, own.allowed_keys(), call.mask).any(-1);  // [B,H,T]
    report_gates(observer, gates.transpose(1, 2), counted);
  }

  const Options options_;
  double scale_;
  Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, gate_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr};
  Compression compress_{nullptr};
};

const RegisterHeads<Nsa> registered("nsa",
                                    "sparse attention: compressed, selected and windowed keys");

}  // namespace
}  // namespace headlab
