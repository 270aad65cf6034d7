#include "core/attention/call/context.h"

#include "core/attention/attend.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Heads first .. first + count - 1 of what broadcasts along them, dimension -`from_end`.
Tensor some_heads(const Tensor& t, int64_t first, int64_t count, int64_t from_end) {
  if (!t.defined() || t.dim() < from_end || t.size(-from_end) == 1) return t;
  return t.narrow(-from_end, first, count);
}

}  // namespace

Tensor Affine::operator()(const Tensor& y) const {
  if (sees) sees(y);
  const auto scaled = scale.defined() ? y * scale.to(y.scalar_type()) : y;
  return offset.defined() ? scaled + offset.to(y.scalar_type()) : scaled;
}

Affine Affine::before(const Affine& outer) const {
  Affine both;
  both.sees = sees ? sees : outer.sees;
  both.scale = scale.defined() && outer.scale.defined() ? scale * outer.scale
               : scale.defined()                        ? scale
                                                        : outer.scale;
  both.offset = offset.defined() && outer.scale.defined() ? offset * outer.scale : offset;
  if (outer.offset.defined())
    both.offset = both.offset.defined() ? both.offset + outer.offset : outer.offset;
  return both;
}

bool Shaping::projections() const {
  bool any = false;
  for (const auto* of : {&q, &k, &v}) any |= of->scale.defined() || of->offset.defined();
  any |= keys.defined() || values.defined();
  return any;
}

HeadCall HeadCall::from_context(const HeadContext& context) { return HeadCall(context); }

HeadCall HeadCall::within(const Scope& scope) const {
  auto call = *this;
  static_cast<Scope&>(call) = scope;
  return call;
}

HeadCall HeadCall::unobserved() const {
  auto call = *this;
  call.observer = nullptr;
  return call;
}

HeadCall HeadCall::of_heads(int64_t first, int64_t count, int64_t H) const {
  auto call = *this;
  const auto ids = head_ids.defined() ? head_ids : at::arange(H, positions.options());
  call.head_ids = ids.narrow(0, first, count);
  call.kv_map = Tensor();
  call.mask.allowed = some_heads(mask.allowed, first, count, 3);
  call.bias = some_heads(bias, first, count, 3);
  call.uniform = some_heads(uniform, first, count, 1);
  call.alive = some_heads(alive, first, count, 1);
  call.map = map->of_heads(first, count);
  call.observer = nullptr;
  return call;
}

HeadCall HeadCall::for_made_up_heads(const Scope& scope) const {
  HeadCall call{HeadContext()};
  static_cast<Scope&>(call) = scope;
  call.backend = backend;
  call.dropout = dropout;
  call.rng = rng;
  return call;
}

HeadCall HeadCall::with_seed(uint64_t index) const {
  auto call = *this;
  if (rng.seed || rng.step != 0) call.rng.seed = rng.bits(CounterRng::kAttentionDropout, index);
  return call;
}

HeadCall HeadCall::with_gates(const Tensor& more) const {
  auto call = *this;
  call.gates = multiply_gates(gates, more);
  return call;
}

}  // namespace headlab
