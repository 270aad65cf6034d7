#include "experiments/data/draws.h"

#include <numeric>
#include <utility>

#include "core/attention/random.h"

namespace headlab {

uint64_t Draws::bits() { return mix_bits(key_ ^ mix_bits(count_++)); }

int64_t Draws::below(int64_t n) {
  // The high word of bits * n: uniform but for n / 2^64.
  return static_cast<int64_t>(static_cast<unsigned __int128>(bits()) * n >> 64);
}

int64_t Draws::between(int64_t low, int64_t high) { return low + below(high - low + 1); }

double Draws::unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

std::vector<int64_t> Draws::distinct(int64_t count, int64_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i) std::swap(all[i], all[between(i, n - 1)]);
  all.resize(count);
  return all;
}

}  // namespace headlab
