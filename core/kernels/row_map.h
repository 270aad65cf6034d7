// A map of rows as the path by blocks of rows calls it: on a CPU by pointers to its functions for
// the chosen instruction set, on a GPU by its own kernels. No torch.
#pragma once

#include <cstdint>

#include "core/kernels/attention_rows.h"

namespace headlab {

// The functions of map_rows.h for rows z of n entries.
template <class T>
struct RowFunctions {
  void (*weigh)(T* z, int64_t n, T number, T* saved) = nullptr;
  void (*again)(T* z, int64_t n, T number, const T* saved, T* a) = nullptr;
  T (*backward)(T* g, int64_t n, const T* trace, const T* a, T number, const T* saved) = nullptr;
};

template <class T>
struct ComposeProblem;

// Kernels of a GPU. They return at once, with null or what CUDA finds wrong with the launch.
template <class T>
struct RowLaunches {
  const char* (*forward)(const ComposeProblem<T>&, T* scratch, void* stream) = nullptr;
  const char* (*backward)(const ComposeProblem<T>&, T* scratch, void* stream) = nullptr;
  int64_t (*scratch)(const ComposeProblem<T>&, bool backward) = nullptr;  // elements
};
struct RowMapOnCuda {
  RowLaunches<float> f32;
  RowLaunches<double> f64;
};

struct RowMap {
  RowFunctions<float> f32;
  RowFunctions<double> f64;
  int64_t saved = 0;    // numbers of a row that go from the forward pass to the backward pass
  bool traced = false;  // backward() wants a number of each key beside the weights
  const RowMapOnCuda* cuda = nullptr;  // null: built without CUDA
  double number = 0;                   // of all heads
};

}  // namespace headlab
