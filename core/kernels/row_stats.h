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
  bool causal;  // then next_token does not exist
  int64_t e;
  const T* v;  // [B,Hkv,S,e]
  int64_t v_stride[3];
  const T* output_weight;  // [D, H*e] rows dense, or null: no norms of values
  int64_t D, output_weight_stride;
  T* value_norm;     // [B,H,S] norm(W_O^h v_j), written by norm_slot; or null
  const T* row_sum;  // [B,H,T] what the weights of a row sum to as they are applied; null: 1
  const T* output;   // [B,H,T,e], or null
  int64_t output_stride[3];
  const int64_t* tokens;   // [B,S] or null
  const uint8_t* classes;  // [B,S] 0 word, 1 cls, 2 sep, 3 punctuation; or null
  bool matches;            // induction and duplicate_token are wanted
  // The scores are the head's own. false: they stand for weights that were handed over, and nothing
  // is said of them (max_logit, lse).
  bool has_scores;
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

// offsets [rows of the slot]: argmax_j a - i, or kNoRow.
template <class T>
using RowStatsSlot = void (*)(const RowProblem<T>&, int64_t slot, const RowTotals& to,
                              int32_t* offsets, T* scratch);
// Jensen-Shannon divergence between all heads at query rows first, first + stride, ... (at most
// kJsRowsPerSlot of them) of example b: sums, counts [H,H].
template <class T>
using JsSlot = void (*)(const RowProblem<T>&, int64_t b, int64_t first, int64_t stride,
                        double* sums, double* counts, T* scratch);

// value_norm of query head h: norm^2 = v^T (W_O^hT W_O^h) v. scratch: (e + 1) * (e rounded up to
// 16).
template <class T>
using NormSlot = void (*)(const RowProblem<T>&, int64_t h, T* scratch);

// The implementation for this processor.
template <class T>
RowStatsSlot<T> row_stats_slot();
template <class T>
JsSlot<T> js_slot();
template <class T>
NormSlot<T> norm_slot();

}  // namespace headlab
