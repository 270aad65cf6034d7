// From tensors to the streamed row statistics: describes an attention call to the kernels of the
// device it ran on, and brings back what they sum in fixed slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/kernels/row_stats.h"

namespace headlab {

using at::Tensor;
struct AttentionCall;

// What is counted of a call beside its scores. Undefined tensors: absent.
struct CountedRows {
  Tensor out = {};            // [B,H,T,e]
  Tensor output_weight = {};  // [D,H*e]
  Tensor tokens = {};         // [B,S] int64
  Tensor classes = {};        // [B,S] uint8
  bool matches = false;       // induction and duplicate_token are wanted
  Tensor row_sums = {};       // [B,H,T] of the weights as they are applied; undefined: 1
  bool has_scores = true;     // false: the scores are ln of weights that were handed over
};

// A problem, and the tensors that it points into.
template <class T>
struct HeldRows {
  RowProblem<T> problem;
  std::vector<Tensor> tensors;
  std::shared_ptr<T[]> panels = {};  // of the keys, on a CPU
};

// Everything on `device`, in the type T.
template <class T>
HeldRows<T> hold_rows(const AttentionCall& call, const CountedRows& counted, at::Device device);

// Query rows start, start + stride, ... for the divergence between heads; stride 0: none.
struct SampledRows {
  int64_t start = 0, stride = 0;
};

// Sums of a call, on the CPU. Slot (b * H + h) * blocks + block holds kRowsPerSlot query rows.
struct RowSlots {
  int64_t B, H, blocks, groups;  // groups: of sampled rows of an example
  Tensor memory;                 // float64, what the pointers point into
  double *sums, *counts;         // [slots,kRowStatistics]
  double* maxima;                // [slots,kRowMaxima]
  double *js, *js_counts;        // [B*groups,H,H]
  int32_t* offsets;              // [slots,kRowsPerSlot] argmax_j a - i, or kNoRow

  int64_t count() const { return B * H * blocks; }
  RowTotals totals(int64_t slot) const {
    return {sums + slot * kRowStatistics, counts + slot * kRowStatistics,
            maxima + slot * kRowMaxima};
  }
};

// Runs the kernels where q lies: on its GPU if they were built for one, else on the CPU. At most
// kMostHeads heads. float64 for a float64 q, float32 for any other.
RowSlots stream_rows(const AttentionCall& call, const CountedRows& counted, SampledRows sampled);

}  // namespace headlab
