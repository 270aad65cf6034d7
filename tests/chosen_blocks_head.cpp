// Heads that choose by content what they see: the query's own block and, of the complete ones
// before it, those with the highest q_i . mean(k of the block) (arXiv 2502.13189).
#include "core/attention/tiles/block_tiles.h"
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

struct ChosenOptions : MhaOptions {
  int64_t block = 2, selected = 2;

  void visit(Fields& f) override {
    f("block", block, "tokens a block", at_least(1));
    f("selected", selected, "blocks that a query sees, its own included", at_least(1));
    MhaOptions::visit(f);
  }
  HeadTraits traits() const override {
    HeadTraits t{.masks = HeadMasks::kKeys, .grouped = true};
    t.windows = t.biases = t.bidirectional = t.cross = false;
    return t;
  }
};

class ChosenBlocks : public ProjectedHeads<ChosenOptions> {
 public:
  using ProjectedHeads::ProjectedHeads;

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = queries(x, call);                    // [B,H,T,d]
    const auto k = keys(x, call), v = values(x, call);  // [B,Hkv,S,d]
    return {.y = output(attend_to_blocks(q, k, v, choose(q, k, call), call, scale()), call)};
  }

  // Each query is a tile of its own. The choice passes no gradient.
  BlockTiles choose(const Tensor& q, const Tensor& k, const HeadCall& call) const {
    const at::NoGradGuard no_grad;
    const int64_t H = q.size(1), T = q.size(2), b = options_.block;
    const auto& keys = call.mask.allowed;  // [B or 1,1,1,S]
    const auto seen = keys.defined() ? k * keys.transpose(2, 3) : k;
    const auto means = cached_at_rate(call, "means", {.each = b}, [&](int64_t first, int64_t n) {
      return seen.narrow(2, first * b, n * b).unflatten(2, {n, b}).mean(3);  // [B,Hkv,n,d]
    });
    if (H == 0) return {};
    const auto index = call.positions.options();
    const auto own = (at::arange(T, index) + past_places(call)).floor_divide(b);  // [T]
    const auto later = at::arange(means.size(2), index) >= own.unsqueeze(1);
    const auto s = at::matmul(widened(q), widened(repeat_kv(means, call.kv_map, H)).mT());
    const auto [score, block] = s.masked_fill(later, kHiddenScore).sort(true, -1, true);
    const auto best = block.masked_fill(score.isinf(), -1).slice(3, 0, options_.selected - 1);
    const auto first = own.view({1, 1, T, 1}).expand({q.size(0), H, T, 1});
    return {.block = b, .rows = T, .blocks = at::cat({first, best}, 3)};
  }
};

const RegisterHeads<ChosenBlocks> blocks("chosen_blocks", "heads that choose blocks of keys");

}  // namespace
}  // namespace headlab
