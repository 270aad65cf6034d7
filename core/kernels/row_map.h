// What turns the scores of a row into its weights, as kernels see it (core/attention/weight_map.h
// says the equations). No torch.
#pragma once

#include <cstdint>

namespace headlab {

enum class RowMapKind { kSoftmax, kEntmax, kSigmoid, kSoftpick };

template <class T>
struct RowMap {
  RowMapKind kind = RowMapKind::kSoftmax;
  T alpha;   // entmax: above 1, at most 2
  T offset;  // sigmoid
  T eps;     // softpick
};

}  // namespace headlab
