// Rows of sigmoids for one instruction set.
#include "core/kernels/row_vectors.h"

namespace headlab::CPU_CAPABILITY {

template <class T>
struct SigmoidRow {
  using V = Vec<T>;

  // numbers: the offset
  static void weigh(T* z, int64_t n, const double* numbers, T*, T*, T*) {
    const V minus_offset(-static_cast<T>(numbers[0]));
    MapRow<T>{z, n}.each([&](const V& score, int64_t) {
      const V w = V(T(1)) / (V(T(1)) + (minus_offset - score).exp_u20());
      const V nan = score != score;  // NOLINT(misc-redundant-expression): a lane of NaN
      return V::blendv(V::blendv(w, V(T(0)), score == V(MapRow<T>::kLow)), score, nan);
    });
  }
  static void backward(const T*, const T* a, int64_t n, const double*, const T*, T* g) {
    MapRow<T>{g, n}.each([&](const V& slope, int64_t j) {
      const V w = V::loadu(a + j);
      return w * (V(T(1)) - w) * slope;
    });
  }
};

RowMap sigmoid_rows() { return row_map<SigmoidRow>(); }

}  // namespace headlab::CPU_CAPABILITY
