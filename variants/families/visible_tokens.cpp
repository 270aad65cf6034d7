#include "variants/families/visible_tokens.h"

#include "core/attention/attend.h"
#include "core/attention/call/context.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {

VisibleTokens::VisibleTokens(const Tensor& x, const HeadCall& call) {
  const int64_t B = x.size(0), T = x.size(1), S = past_places(call) + T;
  auto mask = call.mask;
  mask.causal = false;  // what is left of it hides keys from all queries alike
  const auto seen = allowed_keys(mask, T, S, x.device());
  if (!seen.defined()) return;
  visible_ = seen.expand({B, 1, 1, S}).select(1, 0).select(1, 0).narrow(1, S - T, T);  // [B,T]
  order_ = visible_.to(at::kByte).argsort(/*stable=*/true, 1, /*descending=*/true);
  rank_ = order_.argsort(/*stable=*/true, 1, /*descending=*/false);
  numbers_ = visible_.sum(1);
  beyond_ = within_length(numbers_, T, x.device()).logical_not().view({B, 1, T, 1});
}

Tensor VisibleTokens::gather(const Tensor& t, const Tensor& places) const {
  auto sizes = t.sizes().vec();
  sizes[2] = places.size(1);
  return t.gather(2, places.view({places.size(0), 1, -1, 1}).expand(sizes));
}

Tensor VisibleTokens::hide(const Tensor& t) const {
  return visible_.defined() ? t.masked_fill(beyond_, 0) : t;
}

Tensor VisibleTokens::close_up(const Tensor& t) const {
  return visible_.defined() ? hide(gather(t, order_)) : t;
}

Tensor VisibleTokens::put_back(const Tensor& t) const {
  return visible_.defined() ? gather(hide(t), rank_) : t;
}

Tensor VisibleTokens::last(const Tensor& t, int64_t before) const {
  if (!visible_.defined()) return t.narrow(2, t.size(2) - before, before).clone();
  const auto places = at::arange(before, numbers_.options());
  return gather(t, numbers_.unsqueeze(1) + places);
}

Tensor VisibleTokens::counted(const HeadCall& call) const {
  const auto& places = call.positions;  // [T] or [B,T]
  return both_allowed(visible_,
                      within_length(call.mask.query_length, places.size(-1), places.device()));
}

Tensor short_convolution(const Tensor& p, const Tensor& weight, const Tensor& bias,
                         const VisibleTokens& tokens, Tensor* taps) {
  const auto wide = at_least_float(p);
  const auto fresh = tokens.close_up(p);  // [B,n,T,d]
  if (!weight.defined()) return at::silu(fresh.to(wide));
  const int64_t n = p.size(1), T = p.size(2), d = p.size(3), w = weight.size(1);
  const auto before = taps && taps->defined() ? *taps : p.new_zeros({p.size(0), n, w - 1, d});
  const auto all = at::cat({before, fresh}, 2);  // [B,n,w-1+T,d]
  if (taps) *taps = tokens.last(all, w - 1);
  const auto by_head = [&](const Tensor& of_rows) { return of_rows.to(wide).view({n, 1, d}); };
  const auto inputs = all.to(wide);
  Tensor sum = bias.defined() ? by_head(bias) : inputs.new_zeros({});
  for (int64_t j = 0; j < w; ++j)
    sum = sum.addcmul(inputs.narrow(2, j, T), by_head(weight.select(1, j)));
  return at::silu(sum);
}

}  // namespace headlab
