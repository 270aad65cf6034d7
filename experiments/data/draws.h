// Random numbers that examples are made of.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/attention/random.h"

namespace headlab {

// The random draws of one example. Draw i of two different keys is never the same word.
class Draws {
 public:
  explicit Draws(uint64_t key) : key_(key) {}
  uint64_t bits() { return mix_bits(key_ ^ mix_bits(count_++)); }
  // Uniform over 0 .. n - 1 but for n / 2^64: the high word of bits * n.
  int64_t below(int64_t n) {
    return static_cast<int64_t>(static_cast<unsigned __int128>(bits()) * n >> 64);
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }  // both
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // uniform over [0, 1)
  // Of 0 .. n - 1, in random order.
  std::vector<int64_t> distinct(int64_t count, int64_t n) {
    std::vector<int64_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < count; ++i) std::swap(all[i], all[between(i, n - 1)]);
    all.resize(count);
    return all;
  }

 private:
  uint64_t key_, count_ = 0;
};

}  // namespace headlab
