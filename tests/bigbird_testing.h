// BigBird's pattern as its recipe says it.
#pragma once

#include <fmt/format.h>

#include <set>

#include "tests/layers_testing.h"

namespace headlab::testing {

struct Blocks {
  int64_t block, global, window, random;
  uint64_t seed = 0;

  std::string options() const {
    return fmt::format(
        ", block: {}, global_blocks: {}, window_blocks: {}, random_blocks: {}, seed: {}", block,
        global, window, random, seed);
  }
};

// The blocks that block i of n sees in head h, as the recipe says it, all candidates listed.
inline std::set<int64_t> seen_blocks(const Blocks& o, uint64_t h, uint64_t i, int64_t n,
                                     bool causal) {
  const int64_t front = causal ? o.global : (o.global + 1) / 2, back = causal ? 0 : o.global / 2;
  const auto is_global = [&](int64_t j) { return j < front || j >= n - back; };
  const int64_t row = static_cast<int64_t>(i);
  std::set<int64_t> seen;
  std::vector<int64_t> candidates;
  for (int64_t j = 0; j < n; ++j) {
    if (is_global(row) || is_global(j) || std::abs(row - j) <= (o.window - 1) / 2)
      seen.insert(j);
    else if (!causal || j < row)
      candidates.push_back(j);
  }
  uint64_t state = o.seed ^ (h * 0x9E3779B97F4A7C15ull) ^ (i * 0xBF58476D1CE4E5B9ull);
  for (size_t t = 0; t < std::min<size_t>(o.random, candidates.size()); ++t) {
    state += 0x9E3779B97F4A7C15ull;
    uint64_t u = state;
    u = (u ^ (u >> 30)) * 0xBF58476D1CE4E5B9ull;
    u = (u ^ (u >> 27)) * 0x94D049BB133111EBull;
    u ^= u >> 31;
    std::swap(candidates[t], candidates[t + u % (candidates.size() - t)]);
    seen.insert(candidates[t]);
  }
  return seen;
}

// bool [H,T,T]
inline Tensor pattern(const Blocks& o, int64_t heads, int64_t T, bool causal) {
  const int64_t n = (T + o.block - 1) / o.block;
  auto allowed = at::zeros({heads, T, T}, at::kBool);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j : seen_blocks(o, h, i, n, causal))
        allowed[h]
            .slice(0, i * o.block, std::min(T, (i + 1) * o.block))
            .slice(1, j * o.block, std::min(T, (j + 1) * o.block))
            .fill_(true);
  return causal ? allowed.tril() : allowed;
}

// So small that most of a row of 29 tokens lies outside.
const Blocks kSmall{3, 1, 1, 1, 5};

}  // namespace headlab::testing
