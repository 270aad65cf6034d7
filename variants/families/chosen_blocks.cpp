#include "variants/families/chosen_blocks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/attention/attend.h"
#include "core/attention/call/observer.h"
#include "core/attention/tiles/block_tiles.h"
#include "core/torch.h"
#include "variants/families/chosen_block_kernels.h"

namespace headlab {
namespace {

// From here on a sort takes less time than a list of the highest.
constexpr int64_t kFewHighest = 64;

// The list of a row's highest: best [n] indices, -1 where there are fewer.
template <class T>
void highest_of_row(const T* scores, int64_t N, int64_t n, T* values, int64_t* best) {
  constexpr int64_t kAtOnce = 8;  // most of a row is below a full list
  const auto above = [](T a, T b) { return a > b || (std::isnan(a) && !std::isnan(b)); };
  int64_t count = 0;
  T lowest = -std::numeric_limits<T>::infinity();  // of a full list
  for (int64_t first = 0; first < N && n > 0; first += kAtOnce) {
    const int64_t end = std::min(N, first + kAtOnce);
    bool any = end < first + kAtOnce;
    if (!any)
      for (int64_t c = 0; c < kAtOnce; ++c) any |= !(scores[first + c] <= lowest);
    for (int64_t j = first; j < end && any; ++j) {
      const T x = scores[j];
      if (x <= lowest || std::isnan(lowest)) continue;
      int64_t at = count < n ? count++ : n - 1;
      for (; at > 0 && above(x, values[at - 1]); --at)
        values[at] = values[at - 1], best[at] = best[at - 1];
      values[at] = x, best[at] = j;
      if (count == n) lowest = values[n - 1];
    }
  }
  std::fill(best + count, best + std::max<int64_t>(n, 0), -1);
}

template <class T>
void fill_highest(const Tensor& scores, int64_t n, const Tensor& best) {
  const int64_t N = scores.size(-1), rows = scores.numel() / N;
  const auto* from = scores.const_data_ptr<T>();
  auto* to = best.mutable_data_ptr<int64_t>();
  at::parallel_for(0, rows, 256, [&](int64_t begin, int64_t end) {
    std::vector<T> values(n);
    for (int64_t row = begin; row < end; ++row)
      highest_of_row(from + row * N, N, n, values.data(), to + row * n);
  });
}

// What choose_blocks() gives, row by row: the blocks that the rules force, then the highest.
template <class T>
void fill_choice(const Tensor& scores, const BlockRules& rules, const Tensor& own,
                 const Tensor& blocks) {
  const int64_t N = scores.size(3), rows = scores.size(2), n = blocks.size(3);
  const int64_t heads = scores.size(1), examples = own.size(0);
  const auto* from = scores.const_data_ptr<T>();
  const auto* of_query = own.const_data_ptr<int64_t>();
  auto* to = blocks.mutable_data_ptr<int64_t>();
  at::parallel_for(0, scores.size(0) * heads * rows, 256, [&](int64_t begin, int64_t end) {
    std::vector<T> values(n);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t example = examples == 1 ? 0 : row / (heads * rows);
      const int64_t last = of_query[example * rows + row % rows];
      // Free are first .. local - 1.
      const int64_t first = std::min(rules.first_blocks, last + 1);
      const int64_t local = std::max(first, last - rules.local_blocks + 1);
      auto* best = to + row * n;
      int64_t forced = 0;
      for (int64_t j = 0; j < first; ++j) best[forced++] = j;
      for (int64_t j = local; j <= last; ++j) best[forced++] = j;
      highest_of_row(from + row * N + first, local - first, n - forced, values.data(),
                     best + forced);
      for (int64_t s = forced; s < n && best[s] >= 0; ++s) best[s] += first;
    }
  });
}

// Whether each query sees each block: [B,H,T,m] -> bool [B,H,T,N + 1], of the last nobody.
Tensor seen_blocks(const Tensor& blocks, int64_t N) {
  auto sizes = blocks.sizes().vec();
  sizes[3] = N + 1;
  const auto seen = at::zeros(sizes, blocks.options().dtype(at::kBool));
  seen.scatter_(3, blocks.masked_fill(blocks < 0, N), true).select(3, N).fill_(false);
  return seen;
}

}  // namespace

bool kernels_serve(const Tensor& q, const HeadCall& call) {
  return q.is_cpu() && q.numel() > 0 && call.backend == Backend::kAuto && call.dropout == 0 &&
         !call.bias.defined() && !call.position_bias && !call.uniform.defined() &&
         call.map->is_softmax();
}

Tensor highest_scores(const Tensor& scores, int64_t n) {
  const int64_t N = scores.size(-1), count = std::min(n, N);
  auto sizes = scores.sizes().vec();
  sizes.back() = count;
  const auto best = at::empty(sizes, scores.options().dtype(at::kLong));
  if (best.numel() == 0) return best;
  const auto z = widened(scores.detach()).contiguous();
  if (!z.is_cpu() || count > kFewHighest) {
    const auto [value, index] = z.sort(/*stable=*/true, -1, /*descending=*/true);
    return index.masked_fill(value.isneginf(), -1).narrow(-1, 0, count);
  }
  z.scalar_type() == at::kFloat ? fill_highest<float>(z, count, best)
                                : fill_highest<double>(z, count, best);
  return best;
}

Tensor choose_blocks(const Tensor& scores, const BlockRules& rules, const PackedKeys& tokens) {
  const at::NoGradGuard no_grad;
  const int64_t T = scores.size(2);
  const auto of_query = tokens.query_places(T).floor_divide(rules.block);  // [B or 1,T]
  if (scores.is_cpu() && scores.numel() > 0 && rules.selected <= kFewHighest) {
    auto sizes = scores.sizes().vec();
    sizes[3] = rules.selected;
    const auto blocks = at::empty(sizes, of_query.options());
    const auto z = widened(scores).contiguous(), own = of_query.contiguous();
    z.scalar_type() == at::kFloat ? fill_choice<float>(z, rules, own, blocks)
                                  : fill_choice<double>(z, rules, own, blocks);
    return blocks;
  }
  const auto own = of_query.unsqueeze(1).unsqueeze(3);
  const auto j = at::arange(scores.size(3), own.options());  // [N]; own [B or 1,1,T,1]
  const auto forced = (j < rules.first_blocks) | (j > own - rules.local_blocks);
  const auto z = scores.masked_fill(forced, std::numeric_limits<double>::infinity())
                     .masked_fill_(j > own, kHiddenScore);
  return highest_scores(z, rules.selected);
}

HeadCall masked_to_chosen(const Tensor& blocks, const BlockRules& rules, const PackedKeys& tokens,
                          const HeadCall& call, int64_t T, int64_t S) {
  Scope scope = call;
  auto& allowed = scope.mask.allowed;
  allowed = both_allowed(tokens.pairs(T, S), call.mask.allowed);  // [B or 1,H or 1,T,S]
  if (!blocks.defined()) return call.within(scope);
  const int64_t N = rules.blocks(S);
  const auto of_key = tokens.places.floor_divide(rules.block);  // [B or 1,S]
  const auto index = of_key.masked_fill(of_key < 0, N).view({-1, 1, 1, S});
  allowed = allowed &
            seen_blocks(blocks, N).gather(3, index.expand({blocks.size(0), blocks.size(1), T, S}));
  return call.within(scope);
}

Tensor attend_to_chosen(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                        const BlockRules& rules, const PackedKeys& tokens, const HeadCall& call,
                        double scale) {
  const int64_t T = q.size(2), S = k.size(2);
  const auto masked = [&] { return masked_to_chosen(blocks, rules, tokens, call, T, S); };
  const auto hidden = tokens.hidden_queries(T);
  if (!blocks.defined())
    return hidden.defined() ? attend(q, k, v, masked(), scale) : attend(q, k, v, call, scale);
  // A lone query need not touch all that a cache holds.
  if (call.cache && T == 1 && !hidden.defined() && !tokens.order.defined())
    return attend_to_blocks(q, k, v, {.block = rules.block, .rows = 1, .blocks = blocks}, call,
                            scale);
  if (!kernels_serve(q, call)) return attend(q, k, v, masked(), scale);
  const auto out = attend_to_lists(q, tokens.closed_up(k), tokens.closed_up(v), blocks,
                                   tokens.query_places(T), rules.block, call.kv_map, scale);
  if (call.observer && call.observer->wants_maps())
    call.observer->softmax({q, k, v, masked(), scale}, out);
  return out;
}

}  // namespace headlab
