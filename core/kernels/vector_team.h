// A thread with vectors of one instruction set as a team (team.h), which meets no other. Only for
// .isa.cpp files.
#pragma once

#include "core/kernels/products.h"

namespace headlab::CPU_CAPABILITY {

template <class T>
struct VectorTeam {
  using Number = T;
  using Lanes = VectorLanes<T>;
  static constexpr int64_t kRows = 8;
  static constexpr bool kPadsPanels = true;

  template <class F>
  static void each(int64_t n, const F& f) {
    for (int64_t item = 0; item < n; ++item) f(Lanes(), item);
  }
  static void sync() {}
  template <class A, class B, class C>
  static void multiply(int64_t n, const Sizes& sizes, const A& a, const B& b, const C& c,
                       bool add) {
    for (int64_t i = 0; i < n; ++i) CPU_CAPABILITY::multiply<T>(sizes, a(i), b(i), c(i), add);
  }
  static Panel<T> panel(const View<const T>& x, int64_t b, int64_t head, int64_t count,
                        int64_t padded, T* room) {
    const int64_t width = x.size[3];
    for (int64_t h = 0; h < count; ++h)
      transpose(row_at(x, b, head + h, 0), x.stride[2], x.size[2], width, room + h * width * padded,
                padded);
    return {room, width * padded, padded, 1};
  }
};

}  // namespace headlab::CPU_CAPABILITY
