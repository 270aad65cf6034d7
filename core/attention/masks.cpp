#include "core/attention/masks.h"

#include "core/kernels/attention_rows.h"
#include "core/torch.h"

namespace headlab {

Tensor both_allowed(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() ? a : b;
  return a & b;
}

Tensor within_reach(const Tensor& distance, const KeyReach& reach) {
  Tensor within;
  if (reach.back < kUnlimited) within = distance >= -reach.back;
  return reach.ahead < kUnlimited ? both_allowed(within, distance <= reach.ahead) : within;
}

Tensor within_length(const Tensor& length, int64_t n, const at::Device& device) {
  if (!length.defined()) return length;
  const auto places = at::arange(n, at::TensorOptions(at::kLong).device(device));
  return places < length.to(device).unsqueeze(1);  // [B,n]
}

Tensor allowed_keys(const AttentionMask& mask, int64_t T, int64_t S, const at::Device& device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  Tensor allowed;
  auto meet = [&](const Tensor& more) { allowed = both_allowed(allowed, more); };
  // A lone query stands at the last key: it has no later ones.
  if ((mask.causal && T > 1) || mask.window > 0) {
    const auto place = at::arange(S - T, S, options).unsqueeze(1);  // [T,1]
    meet(within_reach(at::arange(S, options) - place, key_reach(mask.causal, mask.window)));
  }
  if (mask.key_length.defined())
    meet(within_length(mask.key_length, S, device).unsqueeze(1).unsqueeze(1));  // [B,1,1,S]
  if (mask.allowed.defined()) meet(mask.allowed);
  return allowed;
}

Tensor counted_pairs(const Tensor& map, const Tensor& allowed, const AttentionMask& mask) {
  auto counted = allowed.defined() ? allowed : at::ones({}, map.options().dtype(at::kBool));
  if (const auto rows = within_length(mask.query_length, map.size(2), map.device()); rows.defined())
    counted = counted & rows.unsqueeze(1).unsqueeze(3);  // [B,1,T,1]
  return counted.expand_as(map);                         // [B,H,T,S]
}

}  // namespace headlab
