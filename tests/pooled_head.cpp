// Heads whose keys are fewer than tokens: means of two, of which a query sees the complete ones,
//   o_i = sum_c exp(z_ic) v_c / (1 + sum_c exp(z_ic)),   2 c + 1 <= i.
// A cache keeps the means, and the token that waits for its second.
#include "core/projected_heads.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr int64_t kTokens = 2;  // of a key

struct PooledOptions : MhaOptions {
  HeadTraits traits() const override {
    HeadTraits t{.map = HeadMap::kCompressed, .masks = HeadMasks::kKeys, .grouped = true};
    t.rows_sum_to_one = t.windows = t.biases = t.bidirectional = t.cross = false;
    return t;
  }
};

class Pooled : public ProjectedHeads<PooledOptions> {
 public:
  using ProjectedHeads::ProjectedHeads;

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    auto fresh = call;
    fresh.cache = nullptr;
    const auto q = queries(x, call);  // [B,H,T,d]
    const auto k = means("k", keys(x, fresh), call);
    const auto v = means("v", values(x, fresh), call);
    const auto places = at::arange(q.size(2), call.positions.options()) + past_places(call);
    const auto complete = (at::arange(k.size(2), places.options()) + 1) * kTokens;
    Scope seen{.places = false};
    seen.mask.query_length = call.mask.query_length;
    seen.mask.allowed = complete <= places.unsqueeze(1) + 1;  // [T,n]
    if (const auto& keys = call.mask.allowed; keys.defined())
      seen.mask.allowed = seen.mask.allowed & complete_pairs(keys, 3, k.size(2)).all(4);
    const auto rows = attend_lse(q, k, v, call.within(seen), scale());
    return {.y = output(rows.out * rows.lse.sigmoid().unsqueeze(-1).to(rows.out.dtype()), call)};
  }

  static Tensor complete_pairs(const Tensor& t, int64_t dim, int64_t count) {
    return t.narrow(dim, 0, count * kTokens).unflatten(dim, {count, kTokens});
  }
  static Tensor means(const std::string& name, const Tensor& fresh, const HeadCall& call) {
    auto tokens = fresh;  // with the one that waits
    if (call.cache && call.cache->state(name).defined())
      tokens = at::cat({call.cache->state(name), fresh}, 2);
    const auto make = [&](int64_t, int64_t n) { return complete_pairs(tokens, 2, n).mean(3); };
    const auto all = cached_at_rate(call, name, {.each = kTokens}, make);
    if (call.cache) call.cache->state(name) = tokens.slice(2, tokens.size(2) / kTokens * kTokens);
    return all;
  }
};

const RegisterHeads<Pooled> pooled("pooled", "keys that are means of two tokens");

}  // namespace
}  // namespace headlab
