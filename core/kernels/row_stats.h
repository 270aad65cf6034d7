// Statistics of softmax rows, streamed: scores are recomputed from q and k row by row and never
// held as [B,H,T,S]. Plain pointers, no torch and no std containers: the .isa.cpp file behind this
// is compiled once for every instruction set, the .cu file without a torch header.
#pragma once

#include <cstdint>

#include "core/kernels/attention_rows.h"
#include "core/kernels/row_statistics.h"

namespace headlab {

constexpr int64_t kRowsPerSlot = 64;   // rows of one (b, h) that are summed together
constexpr int64_t kJsRowsPerSlot = 4;  // sampled rows of one b that are summed together
constexpr int32_t kNoRow = INT32_MIN;  // in offsets: this row is not counted

// One call of an attention layer. The last dimension of the output is dense too.
template <class T>
struct RowProblem : AttentionRows<T> {
  bool causal = false;  // then next_token does not exist
  int64_t e = 0;
  View<const T> v;                   // [B,Hkv,S,e]
  const T* output_weight = nullptr;  // [D, H*e] rows dense, or null: no norms of values
  int64_t D = 0, output_weight_stride = 0;
  T* value_norm = nullptr;     // [B,H,S] norm(W_O^h v_j), written by norm_slot; or null
  const T* row_sum = nullptr;  // [B,H,T] sums of the weights of rows as they are applied; null: 1
  View<const T> output;        // [B,H,T,e], or none
  const int64_t* tokens = nullptr;   // [B,S] or null
  const uint8_t* classes = nullptr;  // [B,S] 0 word, 1 cls, 2 sep, 3 punctuation; or null
  bool matches = false;              // induction and duplicate_token are wanted
  // The scores are the head's own. false: they stand for weights that were handed over, and nothing
  // is said of them (max_logit, lse).
  bool has_scores = true;
};

template <class T>
static HEADLAB_DEVICE double row_sum(const RowProblem<T>& p, int64_t b, int64_t h, int64_t i) {
  return p.row_sum ? static_cast<double>(p.row_sum[(b * p.H + h) * p.queries + i]) : 1;
}

// Number of slots that row_stats_slot takes, and scratch elements a call needs.
template <class T>
int64_t row_slots(const RowProblem<T>& p) {
  return p.B * p.H * ((p.queries + kRowsPerSlot - 1) / kRowsPerSlot);
}
template <class T>
int64_t row_scratch(const RowProblem<T>& p) {
  const int64_t padded = (p.keys + 15) / 16 * 16;
  return padded * (p.d + 4 + 4) + 64;
}
template <class T>
int64_t js_scratch(const RowProblem<T>& p) {
  const int64_t padded = (p.keys + 15) / 16 * 16;
  return padded * (p.d + 4 + kJsRowsPerSlot * p.H) + 64;
}

// Where rows are counted. Sums and counts begin as 0, maxima as -infinity.
struct RowTotals {
  double *sums, *counts;  // [kRowStatistics]
  double* maxima;         // [kRowMaxima]
};

template <class T>
struct RowStatsKernels {
  // offsets [rows of the slot]: argmax_j a - i, or kNoRow.
  void (*rows)(const RowProblem<T>&, int64_t slot, const RowTotals& to, int32_t* offsets,
               T* scratch);
  // Jensen-Shannon divergence between all heads at query rows first, first + stride, ... (at most
  // kJsRowsPerSlot of them) of example b: sums, counts [H,H].
  void (*js)(const RowProblem<T>&, int64_t b, int64_t first, int64_t stride, double* sums,
             double* counts, T* scratch);
  // value_norm of query head h: norm^2 = v^T (W_O^hT W_O^h) v. scratch: (e + 1) * (e rounded up to
  // 16).
  void (*norms)(const RowProblem<T>&, int64_t h, T* scratch);
};
// For this processor.
template <class T>
const RowStatsKernels<T>& row_stats_kernels();

}  // namespace headlab
