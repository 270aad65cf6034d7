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
    return {.rows_sum_to_one = false,
            .map = HeadMap::kCompressed,
            .windows = false,
            .biases = false,
            .masks = HeadMasks::kKeys,
            .bidirectional = false,
            .cross = false,
            .grouped = true};
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
    const auto rows = attend_lse(q, k, v, call.within(seen), scale());
    return {.y = output(rows.out * rows.lse.sigmoid().unsqueeze(-1).to(rows.out.dtype()), call)};
  }

  static Tensor means(const std::string& name, const Tensor& fresh, const HeadCall& call) {
    auto tokens = fresh;  // with the one that waits
    if (call.cache && call.cache->state(name).defined())
      tokens = at::cat({call.cache->state(name), fresh}, 2);
    int64_t taken = 0;
    const auto all = cached_at_rate(call, name, {.each = kTokens}, [&](int64_t, int64_t count) {
      taken = count * kTokens;
      return tokens.narrow(2, 0, taken).unflatten(2, {count, kTokens}).mean(3);
    });
    if (call.cache) call.cache->state(name) = tokens.narrow(2, taken, tokens.size(2) - taken);
    return all;
  }
};

const RegisterHeads<Pooled> registered("pooled", "keys that are means of two tokens");

}  // namespace
}  // namespace headlab
