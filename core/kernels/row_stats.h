// Statistics of softmax rows, streamed: scores are recomputed from q and k row by row and never
// held as [B,H,T,S]. Plain pointers, no torch and no std containers: the .isa.cpp file behind this
// is compiled once for every instruction set, the .cu file without a torch header.
#pragma once

#include <cstdint>

#include "core/kernels/attention_rows.h"
#include "core/kernels/isa.h"
#include "core/kernels/row_statistics.h"

namespace headlab {

constexpr int64_t kRowsPerSlot = 64;   // rows of one (b, h) that are summed together
constexpr int64_t kJsRowsPerSlot = 4;  // sampled rows of one b that are summed together
constexpr int32_t kNoRow = INT32_MIN;  // in offsets: this row is not counted

constexpr int64_t kMostHeads = 1024;  // whose divergence is measured

// One call of an attention layer. The last dimension of the output is dense.
template <class T>
struct RowProblem : AttentionRows<T> {
  bool causal = false;  // then next_token does not exist
  int64_t e = 0;
  const T* value_norm = nullptr;  // [B,H,S] norm(W_O^h v_j), or null
  const T* row_sum = nullptr;     // [B,H,T] of the weights as they are applied; null: 1
  const T* panels = nullptr;      // [B,Hkv,d,padded] of k, on a CPU alone
  View<const T> output;           // [B,H,T,e], or none
  const T* tokens = nullptr;      // [B,1+padded] NaN, the tokens, NaN; or null. Exact below 2^24
  const T* classes = nullptr;     // [B,padded] 0 word, 1 cls, 2 sep, 3 punctuation, NaN; or null
  bool coarse = false;            // products may round their factors as tensor cores do (tf32)
  // The scores are the head's own. false: they stand for weights that were handed over, and nothing
  // is said of them (max_logit, lse).
  bool has_scores = true;
};

// How many queries of example b count, and the length of a row of whole vectors.
template <class T>
static HEADLAB_DEVICE int64_t counted_queries(const AttentionRows<T>& p, int64_t b) {
  return p.query_length && p.query_length[b] < p.queries ? p.query_length[b] : p.queries;
}
template <class T>
static HEADLAB_ANYWHERE int64_t padded_keys(const AttentionRows<T>& p) {
  return padded_row(p.keys);
}

// Number of slots of a call.
template <class T>
int64_t row_slots(const RowProblem<T>& p) {
  return p.B * p.H * ((p.queries + kRowsPerSlot - 1) / kRowsPerSlot);
}

// Where rows are counted; what stood there before is gone.
struct RowTotals {
  double *sums, *counts;  // [kRowStatistics]
  double* maxima;         // [kRowMaxima]
};

template <class T>
struct RowStatsKernels {
  // offsets [rows of the slot]: argmax_j a - i, or kNoRow.
  void (*rows)(const RowProblem<T>&, int64_t slot, const RowTotals& to, int32_t* offsets,
               T* scratch);
  // Jensen-Shannon divergence between all (at most kMostHeads) heads at query rows first, first +
  // stride, ... (at most kJsRowsPerSlot of them) of example b: sums, counts [H,H].
  void (*js)(const RowProblem<T>&, int64_t b, int64_t first, int64_t stride, double* sums,
             double* counts, T* scratch);
  // Keys of one (b, kv head) as the others read them: k transposed -> to [d,padded].
  void (*panel)(const RowProblem<T>&, int64_t b, int64_t head, T* to);
  int64_t (*row_scratch)(const RowProblem<T>&);  // elements
  int64_t (*js_scratch)(const RowProblem<T>&);
};
#define HEADLAB_DECLARE(isa)                    \
  namespace isa {                               \
  OfTypes<RowStatsKernels> row_stats_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE
// Of the instruction set that was chosen.
template <class T>
RowStatsKernels<T> row_stats_kernels() {
  return of_type(HEADLAB_OF_ISA(row_stats_kernels), T());
}

}  // namespace headlab
