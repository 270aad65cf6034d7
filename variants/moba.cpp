// Mixture of block attention: each query of each head sees its own block of keys and those blocks
// before it whose mean key it meets best.
//
// Lu et al., "MoBA: Mixture of Block Attention for Long-Context LLMs", arXiv 2502.13189, equations
// (5) to (8). Of blocks of b tokens, query i in block t = floor(i / b),
//   s_j = q_h . mean(k of block j), j < t;   chosen: t and the n - 1 highest s_j
//   A = softmax(scale q k^T + biases) over the keys <= i of chosen blocks
// The choice knows no scale and no bias, and passes no gradient. It has no parameters, so that the
// weights of multi-head attention fit.
#include <algorithm>

#include "core/attention/precision.h"
#include "core/projected_heads.h"
#include "core/torch.h"
#include "variants/families/chosen_blocks.h"

namespace headlab {
namespace {

struct MobaOptions : MhaOptions {
  int64_t block = 512, selected = 3;

  void visit(Fields& f) override {
    f("block", block, "tokens a block", at_least(1));
    f("selected", selected, "blocks that a query sees, its own included", at_least(1));
    MhaOptions::visit(f);
  }
  HeadTraits traits() const override {
    HeadTraits t{.masks = HeadMasks::kKeys, .grouped = true};
    t.windows = t.bidirectional = t.cross = false;
    return plain(t);
  }
  BlockRules rules() const { return {.block = block, .selected = selected}; }
};

class Moba : public ProjectedHeads<MobaOptions> {
 public:
  using ProjectedHeads::ProjectedHeads;

  std::vector<Statistic> own_statistics() const override { return choice_statistics(); }

  double flops(int64_t T, int64_t S, double pairs) const override {
    const auto& o = options_;
    const double width = 2.0 * static_cast<double>(shape_.heads * shape_.head_dim);
    const int64_t blocks = S / o.block;
    const double of_choice = width * static_cast<double>(T) * static_cast<double>(blocks);
    return projected_flops(T, S, std::min(pairs, 1.0 * T * o.selected * o.block)) + of_choice;
  }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    const PackedKeys tokens(call, x.size(0), k.size(2));
    const auto rules = options_.rules();
    const auto means = block_means(k, tokens, call);  // [B,Hkv,N,d] of the complete blocks
    const bool chooses = rules.chooses(k.size(2)), watched = call.observer;
    Tensor blocks;  // [B,H,T,n]
    if ((chooses || watched) && q.size(1) > 0) blocks = choose(q, means, k.size(2), tokens, call);
    const auto heads =
        attend_to_chosen(q, k, v, chooses ? blocks : Tensor(), rules, tokens, call, scale());
    if (watched && blocks.defined()) {
      observe_choice(blocks, rules, k.size(2), call);
      report_choice(q, k, blocks, rules, tokens, call, scale());
    }
    return {.y = output(heads, v, call)};  // [B,T,D]
  }

  // Kept beside keys and values while decoding. A mask that hides tokens moves blocks: then they
  // are made anew.
  Tensor block_means(const Tensor& k, const PackedKeys& tokens, const HeadCall& call) const {
    const at::NoGradGuard no_grad;
    const int64_t b = options_.block;
    const auto mean = [&](const Tensor& of, int64_t first, int64_t n) {
      return widened(of.narrow(2, first * b, n * b)).unflatten(2, {n, b}).mean(3);
    };
    const auto means = cached_at_rate(call, "means", {.each = b},
                                      [&](int64_t first, int64_t n) { return mean(k, first, n); });
    return tokens.order.defined() ? mean(tokens.closed_up(k), 0, k.size(2) / b) : means;
  }

  Tensor choose(const Tensor& q, const Tensor& means, int64_t S, const PackedKeys& tokens,
                const HeadCall& call) const {
    const at::NoGradGuard no_grad;
    const WithoutAutocast exact;
    const auto s = at::matmul(widened(q), repeat_kv(means, call.kv_map, q.size(1)).mT());
    const auto rules = options_.rules();
    // The last block may be incomplete: it is nobody's candidate.
    return choose_blocks(at::constant_pad_nd(s, {0, rules.blocks(S) - s.size(3)}), rules, tokens);
  }
};

const RegisterHeads<Moba> registered("moba",
                                     "sparse attention: each query chooses blocks by their means");

}  // namespace
}  // namespace headlab
