// Rows of softpick for one instruction set.
#include "core/kernels/row_vectors.h"

namespace headlab::CPU_CAPABILITY {

// e / D, e = exp(z - m) - exp(-m), D = sum |e| + eps, m = max(max z, 0); weights are what of it is
// positive, and the trace is all of it. Hidden keys: 0.
template <class T>
struct SoftpickRow {
  using V = Vec<T>;
  enum Kept { kLeast, kDivisor, kOfM };  // exp(-m), D, and eps / D where m is the highest score

  // numbers: eps
  static void weigh(T* z, int64_t n, const double* numbers, T* a, T* kept, T*) {
    const MapRow<T> row{z, n};
    const T eps = static_cast<T>(numbers[0]);
    const T most = row.highest(), m = most > 0 ? most : T(0);
    // By the exp of the scores: one of 0 has e = 0 exactly, where the slope changes.
    const V least = V(-m).exp();
    V total(T(0));
    row.each([&](const V& score, int64_t) {
      const V e = (score - V(m)).exp() - least;
      const V shown = V::blendv(e, V(T(0)), score == V(MapRow<T>::kLow));
      total = total + shown.abs();
      return shown;
    });
    const T divisor = sum_lanes(total) + eps;
    const V inverse(1 / divisor);
    for (int64_t j = 0; j < n; j += V::size()) {
      const V part = V::loadu(z + j) * inverse;
      part.store(z + j);
      at::vec::maximum(part, V(T(0))).store(a + j);
    }
    least.store(kept + kLeast, 1);
    kept[kDivisor] = divisor, kept[kOfM] = most > 0 ? eps / divisor : T(0);
  }

  // exp(z - m) = e + exp(-m); at hidden keys the gradient is 0 as e is.
  static void backward(const T* trace, const T* a, int64_t n, const double*, const T* kept, T* g) {
    const MapRow<T> row{g, n};
    const V zero(T(0));
    const T mean = row.sum([&](const V& slope, int64_t j) { return V::loadu(a + j) * slope; });
    const V inverse(1 / kept[kDivisor]), D(kept[kDivisor]), least(kept[kLeast]), m(mean);
    row.each([&](const V& slope, int64_t j) {
      const V e = V::loadu(trace + j);
      const V up = V::blendv(zero, slope - m, e > zero), down = V::blendv(zero, m, e < zero);
      return (up + down) * inverse * at::vec::fmadd(e, D, least);
    });
    if (kept[kOfM] == 0) return;
    // m scales everything but eps: its gradient goes to the highest scores.
    const MapRow<T> signs{const_cast<T*>(trace), n};
    const V most(signs.highest()), one(T(1));
    const T ties = signs.sum([&](const V& e, int64_t) { return V::blendv(zero, one, e == most); });
    const V share(kept[kOfM] * mean / ties);
    row.each([&](const V& slope, int64_t j) {
      return slope - V::blendv(zero, share, V::loadu(trace + j) == most);
    });
  }
};

RowMap softpick_rows() {
  auto map = row_map<SoftpickRow>();
  map.traced = true;
  map.kept = 3;
  return map;
}

}  // namespace headlab::CPU_CAPABILITY
