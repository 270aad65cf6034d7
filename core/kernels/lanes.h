// Vectors of one instruction set. Only for .isa.cpp files, which are compiled once for each.
#pragma once

// g++ 12 takes the undefined lanes inside its own AVX-512 headers for a mistake of ours.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

namespace headlab::CPU_CAPABILITY {

template <class T>
using Vec = at::vec::Vectorized<T>;

template <class T>
T sum_lanes(const Vec<T>& v) {
  return at::vec::vec_reduce_all<T>([](Vec<T>& a, Vec<T>& b) { return a + b; }, v);
}

}  // namespace headlab::CPU_CAPABILITY
