// How a map turns a row of scores into its weights and back, as kernels that hold rows in vectors
// call it. No torch.
#pragma once

#include <cstdint>

namespace headlab {

constexpr int64_t kRowLanes = 16;  // rows are so many entries long, or a multiple of them

// A row of n scores, those of hidden keys -infinity. `numbers` are RowMap::numbers.
template <class T>
struct RowFunctions {
  // z -> its weights a, 0 at hidden keys; all NaN where a score is. a is z itself, but in the
  // backward pass of a traced map: there z becomes the trace. Writes `kept`; scratch [n + 16].
  void (*weigh)(T* z, int64_t n, const double* numbers, T* a, T* kept, T* scratch) = nullptr;
  // g, the gradient of the weights a -> that of the scores, in place.
  void (*backward)(const T* trace, const T* a, int64_t n, const double* numbers, const T* kept,
                   T* g) = nullptr;
};

struct RowMap {
  RowFunctions<float> f32;
  RowFunctions<double> f64;
  bool traced = false;  // backward() wants a number of each key beside the weights
  int64_t kept = 0;     // and so many of the row
  double numbers[2] = {};
};

}  // namespace headlab
