#include "variants/stickbreaking/sticks.h"

#include <ATen/ops/log_sigmoid.h>

#include <limits>

#include "core/attention/attend.h"
#include "core/attention/paths/paths.h"
#include "core/kernels/isa.h"
#include "core/torch.h"

namespace headlab {

#define HEADLAB_DECLARE(isa) \
  namespace isa {            \
  RowMap stick_rows();       \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

namespace {

class Sticks : public Map {
 public:
  explicit Sticks(bool rest_is_added) : rest_is_added_(rest_is_added) {}

  Tensor weights(const Tensor& z, const Tensor& allowed, const AttentionCall&) const override {
    return break_sticks(z, allowed).a;
  }
  bool rows_sum_to_one() const override { return rest_is_added_; }
  std::optional<RowMap> row_map(const AttentionCall&, int64_t) const override {
    return HEADLAB_OF_ISA(stick_rows);
  }

 private:
  bool rest_is_added_;
};

// One entry more, before all others, of what may be broadcast along its S last entries.
Tensor with_entry_before(const Tensor& t, int64_t S, double value) {
  auto sizes = t.sizes().vec();
  if (sizes.empty()) sizes.push_back(S);
  sizes.back() = S;
  return at::constant_pad_nd(t.expand(sizes), {1, 0}, value);
}

// The call with a key more, before all others, which every row sees and whose score is infinite: so
// its weight is the rest. Dropout would count keys otherwise, and an observer see one too many.
HeadCall with_infinite_key(const HeadCall& call, const Tensor& q, int64_t S) {
  auto longer = call.unobserved();
  longer.dropout = 0;
  auto& mask = longer.mask;
  if (mask.window > 0) {
    mask.allowed =
        allowed_keys({mask.window - 1, kUnlimited}, {}, mask.allowed, q.size(2), S, q.device());
    mask.window = 0;
  }
  if (mask.allowed.defined()) mask.allowed = with_entry_before(mask.allowed, S, 1);
  if (mask.key_length.defined()) mask.key_length = mask.key_length + 1;
  const auto bias = call.bias.defined() ? call.bias : at::zeros({1}, q.options());
  longer.bias = with_entry_before(bias, S, std::numeric_limits<double>::infinity());
  return longer;
}

// Values [B,Hkv,S,e] with a feature more, which is 1 in the key before them alone: [B,Hkv,1+S,e+1].
Tensor with_rest_feature(const Tensor& v) {
  auto values = at::constant_pad_nd(v, {0, 1, 1, 0});
  at::NoGradGuard no_grad;
  values.select(2, 0).select(2, v.size(3)).fill_(1);
  return values;
}

}  // namespace

// By logarithms, so that nothing is subtracted from 1; their sums run from the last key on.
BrokenSticks break_sticks(const Tensor& scores, const Tensor& allowed) {
  const auto hidden =
      allowed.defined() ? allowed.logical_not() : at::zeros({1}, scores.options().dtype(at::kBool));
  const auto z = scores.masked_fill(hidden, 0);
  const auto lost = at::log_sigmoid(-z).masked_fill(hidden, 0);  // ln(1 - sigmoid(z_ij))
  const auto left = lost.flip(-1).cumsum(-1).flip(-1);           // of j and all keys behind it
  const auto before = at::constant_pad_nd(left.slice(-1, 1), {0, 1});
  return {(at::log_sigmoid(z) + before).exp().masked_fill(hidden, 0), left.select(-1, 0).exp()};
}

MapPtr stick_map(bool rest_is_added) { return std::make_shared<Sticks>(rest_is_added); }

SaidBySticks broken_by_rows(const AttentionCall& call, const HeadCall& given) {
  const bool drops = call.dropout > 0;
  const int64_t e = drops ? 0 : call.v.size(3);
  AttentionCall longer(call.q, at::constant_pad_nd(call.k, {0, 0, 1, 0}),
                       with_rest_feature(call.v.narrow(3, 0, e)),
                       with_infinite_key(given, call.q, call.k.size(2)), call.scale);
  longer.map = call.map, longer.reach.ahead = call.reach.ahead;
  const auto out = attended(longer).out;  // [B,H,T,e+1]
  return {drops ? attended(call).out : out.narrow(3, 0, e), out.select(3, e)};
}

Tensor kept_of_own(const Tensor& rest, int64_t S, const Dropout& dropout) {
  const int64_t T = rest.size(2);
  auto kept = at::empty(rest.sizes(), at::kDouble);
  auto* to = kept.mutable_data_ptr<double>();
  for (int64_t row = 0; row < rest.numel(); ++row) {
    const auto own = static_cast<uint32_t>(S - T + row % T);
    to[row] = dropout.row(row).keeps(own) ? dropout.factor : 0;
  }
  return kept.to(rest.options());
}

}  // namespace headlab
