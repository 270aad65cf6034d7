#include "variants/dcmha/token_composition.h"

#include "core/attention/attend.h"
#include "core/attention/precision.h"
#include "core/torch.h"

namespace headlab {
namespace {

Tensor wide(const Tensor& t) { return t.defined() ? widened(t) : t; }

bool has_gates(const Tensor& factors) { return factors.size(1) % 2 == 1; }

}  // namespace

Tensor TokenComposition::matrix() const {
  const WithoutAutocast exact;
  const auto& some = fixed.defined() ? fixed : query.defined() ? query : key;
  const int64_t H = some.size(-1);
  const auto with_fixed = [&] {  // [H,H]
    const auto eye = at::eye(H, wide(some).options());
    return fixed.defined() ? eye + wide(fixed) : eye;
  };
  if (!query.defined()) return with_fixed().unsqueeze(0).unsqueeze(0);  // [1,1,H,H]
  const auto q = wide(query);
  const int64_t B = q.size(0), T = q.size(2), R = q.size(1) / 2;
  const auto w1 = q.narrow(1, 0, R).permute({0, 2, 3, 1}).reshape({B * T, H, R});
  const auto w2 = q.narrow(1, R, R).permute({0, 2, 1, 3}).reshape({B * T, R, H});
  Tensor sum;  // [H,H] or [BT,H,H], that the product is added to
  if (!has_gates(q)) {
    sum = with_fixed();
  } else {
    sum = at::diag_embed(q.select(1, 2 * R) + 1).flatten(0, 1);
    if (fixed.defined()) sum = sum + wide(fixed);
  }
  return at::baddbmm(sum, w1, w2).view({B, T, H, H});
}

Composition TokenComposition::composition() const {
  if (!fixed.defined() && !query.defined() && !key.defined()) return {};
  return {matrix(), wide(key)};
}

std::vector<Tensor> TokenComposition::terms(const Tensor& a) const {
  const WithoutAutocast exact;
  std::vector<Tensor> terms(5);
  if (fixed.defined()) terms[0] = at::einsum("bmts,mn->bnts", {a, wide(fixed)});
  const auto add = [&](const Tensor& part, const char* reads, const char* writes, int64_t other_dim,
                       int n) {
    if (!part.defined()) return;
    const auto factors = wide(part);  // [B,2R(+1),N,H]
    const int64_t R = factors.size(1) / 2;
    const auto mixed = at::einsum(reads, {a, factors.narrow(1, 0, R)});  // [B,R,T,S]
    terms[n] = at::einsum(writes, {mixed, factors.narrow(1, R, R)});     // [B,H,T,S]
    if (has_gates(factors))
      terms[n + 1] = a * factors.select(1, 2 * R).transpose(1, 2).unsqueeze(other_dim);
  };
  add(query, "bmts,brtm->brts", "brts,brtn->bnts", 3, 1);
  add(key, "bmts,brsm->brts", "brts,brsn->bnts", 2, 3);
  return terms;
}

}  // namespace headlab
