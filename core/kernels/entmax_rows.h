// Rows of alpha-entmax on the CPU. Plain pointers: the .isa.cpp file behind this is compiled once
// for every instruction set.
#pragma once

#include <cstdint>

namespace headlab {

// Numbers of scratch that a row of S keys needs.
constexpr int64_t entmax_scratch(int64_t S) { return S + 16; }

// One row: z [S] -> p [S], for 1 < alpha <= 2. Keys that shall have no weight stand far below.
template <class T>
using EntmaxRow = void (*)(const T* z, int64_t S, T alpha, T* p, T* scratch);

// Of the best instruction set here.
template <class T>
EntmaxRow<T> entmax_row();
template <>
EntmaxRow<float> entmax_row<float>();
template <>
EntmaxRow<double> entmax_row<double>();

}  // namespace headlab
