#include "core/attention/tiles/pair_scope.h"

#include "core/attention/attend.h"
#include "core/kernels/attention_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

// [n] -> [n,1,...], before what the pairs broadcast to.
Tensor by_example(const Tensor& t, const Pairs& pairs) {
  std::vector<int64_t> sizes(pairs.h.dim() + 1, 1);
  sizes[0] = -1;
  return t.view(sizes);
}

// The entries of t, which broadcasts to [B,H,T,S], at the pairs. What t is broadcast along stays 1
// where the other indices allow it.
Tensor pick(const Tensor& t, const Pairs& at) {
  auto full = t;
  while (full.dim() < 4) full = full.unsqueeze(0);
  const auto only = at::zeros({1}, at.h.options());
  const auto along = [&](int64_t dim, const Tensor& index) -> at::indexing::TensorIndex {
    return full.size(dim) == 1 ? only : index;
  };
  const auto b = by_example(at::arange(full.size(0), at.h.options()), at);
  return full.index({b, along(1, at.h), along(2, at.i), along(3, at.j)});
}

}  // namespace

Scope scope_of_pairs(const HeadCall& call, const Pairs& pairs, int64_t T, int64_t S,
                     const Tensor& real) {
  Scope own;
  auto& allowed = own.mask.allowed = real;
  const auto meet = [&](const Tensor& more) { allowed = both_allowed(allowed, more); };
  const auto& [h, i, j] = pairs;
  const auto reach = key_reach(call.mask.causal, call.mask.window);
  if (const auto near = within_reach(j - i - (S - T), reach); near.defined()) meet(near);
  if (call.mask.key_length.defined())
    meet(j < by_example(call.mask.key_length.to(j.device()), pairs));
  const Pairs inside{h, i.clamp(0, T - 1), j.clamp(0, S - 1)};
  if (call.mask.allowed.defined()) meet(pick(call.mask.allowed, inside));
  if (call.bias.defined()) own.bias = pick(call.bias, inside);
  if (call.position_bias) {
    const auto table = biases_by_distance(call, T, S);  // [H,S+T-1]
    const auto column = inside.j - inside.i + (T - 1);  // of the distance j - place
    auto by_distance = table.index({h, column});
    if (by_distance.dim() == h.dim()) by_distance = by_distance.unsqueeze(0);
    own.bias = own.bias.defined() ? own.bias + by_distance : by_distance;
  }
  return own;
}

}  // namespace headlab
