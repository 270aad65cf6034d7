#include "core/attention/call/masks.h"

#include "core/attention/precision.h"
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
  return allowed_keys(key_reach(mask.causal, mask.window), mask.key_length, mask.allowed, T, S,
                      device);
}

Tensor allowed_keys(const KeyReach& reach, const Tensor& key_length, const Tensor& allowed,
                    int64_t T, int64_t S, const at::Device& device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  Tensor all;
  // A lone query stands at the last key: it has no later ones.
  if (reach.back < kUnlimited || reach.ahead < 0 || (reach.ahead < kUnlimited && T > 1)) {
    const auto place = at::arange(S - T, S, options).unsqueeze(1);  // [T,1]
    const auto key = at::arange(S, options);                        // no distance [T,S] is held
    if (reach.back < kUnlimited) all = key >= place - reach.back;
    if (reach.ahead < kUnlimited) all = both_allowed(all, key <= place + reach.ahead);
  }
  if (const auto within = within_length(key_length, S, device); within.defined())
    all = both_allowed(all, within.unsqueeze(1).unsqueeze(1));  // [B,1,1,S]
  return both_allowed(all, allowed);
}

void hide_by_bias(Tensor& bias, Tensor& allowed) {
  if (!bias.defined() || bias.numel() == 0) return;
  // On a GPU the question alone would wait for all work that is queued there.
  if (bias.is_cpu() && all_above(bias, kHiddenScore)) return;
  const auto hidden = bias.detach().isneginf();
  allowed = both_allowed(allowed, hidden.logical_not());
  bias = bias.masked_fill(hidden, 0);
}

Tensor counted_pairs(const Tensor& map, const Tensor& allowed, const AttentionMask& mask) {
  auto counted = allowed.defined() ? allowed : at::ones({}, map.options().dtype(at::kBool));
  if (const auto rows = within_length(mask.query_length, map.size(2), map.device()); rows.defined())
    counted = counted & rows.unsqueeze(1).unsqueeze(3);  // [B,1,T,1]
  return counted.expand_as(map);                         // [B,H,T,S]
}

}  // namespace headlab
