// Who works on a block of rows: a thread of a CPU, the warps of a block of a GPU, or, in tests,
// warps that run one after the other in any order. A kernel is a list of phases, written once.
//
// `Team` offers
//   Number, Lanes           an entry, and who shares a row (lanes.h)
//   kRows                   query rows of a block
//   each(n, f)              f(lanes, item) for 0 .. n - 1, dealt out to the warps
//   sync()                  a phase ends: all warps see what the others wrote
//   multiply(n, sizes, a, b, c, add)
//                           c(i) (+)= a(i) b(i) of 0 .. n - 1, whose columns of c are dense; a
//                           phase
//   panel(x, b, head, count, padded, room)
//                           rows of keys or values as the right side of a product, transposed; room
//                           for count x width x padded elements on a CPU; a phase
//   kPadsPanels             the panel has zeros beyond the keys, up to `padded` of them
#pragma once

#include "core/kernels/lanes.h"

namespace headlab {

// A matrix whose rows or columns need not be dense.
template <class T>
struct Strided {
  const T* at;
  int64_t row, column;
};
// A matrix whose columns are dense.
template <class T>
struct RowMajor {
  T* at;
  int64_t row;
};
struct Sizes {
  int64_t M, N, K;
};

// Features x keys of some heads.
template <class T>
struct Panel {
  const T* at;
  int64_t head, feature, key;
  HEADLAB_DEVICE Strided<T> of(int64_t h, int64_t first_key) const {
    return {at + h * head + first_key * key, feature, key};
  }
};

// Elements [h][feature][key] of rows that stand where they are.
template <class T>
static HEADLAB_DEVICE Panel<T> panel_in_place(const View<const T>& x, int64_t b, int64_t head) {
  return {row_at(x, b, head, 0), x.stride[1], 1, x.stride[2]};
}

}  // namespace headlab
