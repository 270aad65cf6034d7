#include "variants/nsa/selection.h"

#include <algorithm>

#include "core/attention/precision.h"
#include "core/torch.h"
#include "variants/families/chosen_block_kernels.h"
#include "variants/families/chosen_blocks.h"

namespace headlab {
namespace {

constexpr int64_t kRows = 256;        // queries whose weights are held at once
constexpr int64_t kKeys = 64;         // compressed blocks that the kernels take at once
constexpr int64_t kWindowBlock = 32;  // tokens of the window that they do

// How many compressed blocks lie before each query, itself included: [B or 1,T], 0 of a hidden one.
Tensor complete(int64_t T, CompressedSizes sizes, const PackedKeys& tokens) {
  const auto rate = sizes.rate();
  return (tokens.query_places(T) + 1 - rate.before).floor_divide(rate.each).clamp_min(0);
}

// Softmax of scale q k^T over the first `count` [B or 1,T] of C compressed blocks: [B,H,T,C].
Tensor weights(const Tensor& q, const Tensor& k, const Tensor& count, const HeadCall& call,
               double scale) {
  const auto z = scaled_products(q, k, call, scale);  // [B,H,T,C]
  if (z.size(3) == 0) return z;
  const auto c = at::arange(k.size(2), count.options());
  return masked_softmax(z, c < count.unsqueeze(1).unsqueeze(3));
}

// The same without gradients, where rows are those of a sequence without hidden tokens: only the
// last compressed blocks end between its first row and its last.
Tensor weights_of_rows(const Tensor& q, const Tensor& k, const Tensor& count, int64_t seen_by_all,
                       const HeadCall& call, double scale) {
  if (seen_by_all <= 0) return weights(q, k, count, call, scale);
  const auto z = scaled_products(q, k, call, scale);  // [B,H,rows,C]
  const int64_t some = k.size(2) - seen_by_all;
  const auto c = at::arange(seen_by_all, k.size(2), count.options());
  z.narrow(3, seen_by_all, some).masked_fill_(c >= count.unsqueeze(1).unsqueeze(3), kHiddenScore);
  return at::softmax(z, -1);
}

// Those with equal weights in the heads of call.uniform.
Tensor uniform_weights(const Tensor& p, const Tensor& count, const HeadCall& call) {
  if (!call.uniform.defined()) return p;
  const auto n = count.unsqueeze(1).unsqueeze(3);  // [B or 1,1,T,1]
  const auto seen = (at::arange(p.size(3), n.options()) < n).to(p.scalar_type());
  return at::where(call.uniform.view({-1, 1, 1}), seen / n.clamp_min(1), p);
}

// Sums over the alive heads of each group: [B,H,T,C] -> [B,Hkv,T,C].
Tensor group_sums(const Tensor& p, int64_t kv_heads, const HeadCall& call) {
  const auto alive = call.alive.defined() ? p * call.alive.view({-1, 1, 1}) : p;
  const int64_t H = p.size(1);
  if (call.kv_map.defined()) {
    auto sizes = p.sizes().vec();
    sizes[1] = kv_heads;
    return at::zeros(sizes, p.options()).index_add_(1, call.kv_map, alive);
  }
  return H == kv_heads ? alive : alive.unflatten(1, {kv_heads, H / kv_heads}).sum(2);
}

}  // namespace

Tensor attend_to_compressed(const Tensor& q, const Tensor& k, const Tensor& v,
                            CompressedSizes sizes, const PackedKeys& tokens, const HeadCall& call,
                            double scale) {
  const int64_t T = q.size(2), C = k.size(2);
  const auto count = complete(T, sizes, tokens);
  if (T > 1 && C > 0 && kernels_serve(q, call)) {
    const auto all = at::arange((C + kKeys - 1) / kKeys, count.options()).view({1, 1, 1, -1});
    return attend_to_lists(q, k, v, all, count - 1, kKeys, call.kv_map, scale);
  }
  const auto p = uniform_weights(weights(q, k, count, call, scale), count, call);
  return weighted_values(p, v, call);
}

Tensor attend_to_window(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                        const PackedKeys& tokens, const HeadCall& call, double scale) {
  const int64_t T = q.size(2), S = k.size(2);
  if (T == 1 || S < tokens.places.size(1) || !kernels_serve(q, call))
    return attend(q, k, v, windowed(call, tokens, window, S, T), scale);
  const auto places = tokens.query_places(T);  // [B or 1,T]
  const int64_t reach =
      (window - 1 + kWindowBlock - 1) / kWindowBlock + 1;  // blocks before it, own
  const auto own = places.floor_divide(kWindowBlock).unsqueeze(1).unsqueeze(3);
  const auto before = at::arange(std::min(reach, (S - 1) / kWindowBlock + 1), own.options());
  return attend_to_lists(q, tokens.closed_up(k), tokens.closed_up(v), own - before, places,
                         kWindowBlock, call.kv_map, scale, window - 1);
}

HeadCall windowed(const HeadCall& call, const PackedKeys& tokens, int64_t window, int64_t kept,
                  int64_t T) {
  Scope scope = call;
  scope.mask.window = window;
  if (!tokens.hidden_queries(T).defined()) return call.within(scope);
  const auto pairs = tokens.pairs(T, window - 1);
  scope.mask.window = 0;
  scope.mask.allowed = pairs.narrow(3, pairs.size(3) - kept, kept);
  return call.within(scope);
}

Tensor block_scores(const Tensor& q, const Tensor& k, CompressedSizes sizes, int64_t b, int64_t N,
                    const PackedKeys& tokens, const HeadCall& call, double scale) {
  const at::NoGradGuard no_grad;
  const int64_t B = q.size(0), T = q.size(2), Hkv = k.size(1), of_block = b / sizes.stride;
  const auto count = complete(T, sizes, tokens);
  const auto scores = at::empty({B, Hkv, T, N}, q.options().dtype(at_least_float(q)));
  for (int64_t first = 0; first < T; first += kRows) {
    const int64_t rows = std::min(kRows, T - first), end = tokens.places.size(1) - T + first + rows;
    // No query sees what ends behind it, and the first of the rows sees all that ends before it.
    const int64_t C = std::clamp<int64_t>(sizes.rate().entries(end), 0, k.size(2));
    const bool whole = !tokens.hidden_queries(T).defined();
    const int64_t by_all = whole ? sizes.rate().entries(end - rows + 1) : 0;
    const auto p = weights_of_rows(q.narrow(2, first, rows), k.narrow(2, 0, C),
                                   count.narrow(1, first, rows), std::min(by_all, C), call, scale);
    const auto sums = group_sums(p, Hkv, call);  // [B,Hkv,rows,C]
    // Chunk n lies in the compressed blocks n - l / s + 1 .. n.
    const int64_t seen = std::min(N, (end + b - 1) / b), n = seen * of_block;
    const auto chunks = at::zeros({B, Hkv, rows, n}, sums.options());
    for (int64_t shift = 0; shift < sizes.tokens / sizes.stride; ++shift)
      chunks.narrow(3, shift, C).add_(sums);
    const auto of_rows = scores.narrow(2, first, rows).narrow(3, 0, seen);
    of_rows.copy_(chunks.slice(3, 0, n, of_block));
    for (int64_t c = 1; c < of_block; ++c) of_rows.add_(chunks.slice(3, c, n, of_block));
  }
  return scores;
}

}  // namespace headlab
