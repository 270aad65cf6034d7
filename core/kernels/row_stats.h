// Statistics of softmax rows, streamed: scores are recomputed from q and k row by row and never
// held as [B,H,T,S]. Plain pointers, no torch and no std containers: the .isa.cpp file behind this
// is compiled once for every instruction set, the .cu file without a torch header.
#pragma once

#include <cstdint>

// nvcc compiles what the kernels share for the device.
#ifdef __CUDACC__
#define HEADLAB_DEVICE __device__
#else
#define HEADLAB_DEVICE
#endif

namespace headlab {

// What a row contributes to; a head's value is sum / count over the counted rows. The order is the
// order of `statistic_table()` in probe.h.
enum RowStatistic : int {
  kEntropy,
  kEntropyNormalized,
  kMaxWeight,
  kConfidence,
  kMeanDistance,
  kSignedOffset,
  kOffsetVariance,
  kPrevToken,
  kNextToken,
  kSelfToken,
  kFirstToken,
  kClsMass,
  kSepMass,
  kPunctuationMass,
  kParticipationRatio,
  kValueWeightedNorm,
  kOutputNorm,
  kInduction,
  kDuplicateToken,
  kArgmaxDistance,
  kRowStatistics  // how many there are
};

constexpr int64_t kRowsPerSlot = 64;   // rows of one (b, h) that are summed together
constexpr int64_t kJsRowsPerSlot = 4;  // sampled rows of one b that are summed together
constexpr int32_t kNoRow = INT32_MIN;  // in offsets: this row is not counted

// One call of an attention layer. Strides in elements; the last dimension of q, k, output is dense.
template <class T>
struct RowProblem {
  int64_t B, H, queries, keys, d, e;
  const T* q;  // [B,H,T,d]
  const T* k;  // [B,Hkv,S,d]
  int64_t q_stride[3], k_stride[3];
  const int64_t* kv_head;  // [H]: row of k that query head h uses
  double scale;
  bool causal;
  bool cross;  // places of queries and keys do not compare
  int64_t window;
  const int64_t* query_length;  // [B] or null
  const int64_t* key_length;    // [B] or null
  const bool* allowed;          // null, or strides over (b,h,i,j), 0 where broadcast
  int64_t allowed_stride[4];
  const T* bias;  // likewise
  int64_t bias_stride[4];
  const T* distance_bias;  // [H, T+S-1] at j - i = -(S-1) .. , i a place; or null
  const T* v;              // [B,Hkv,S,e]
  int64_t v_stride[3];
  const T* output_weight;  // [D, H*e] rows dense, or null: no norms of values
  int64_t D, output_weight_stride;
  T* value_norm;    // [B,H,S] norm(W_O^h v_j), written by norm_slot; or null
  const T* output;  // [B,H,T,e], or null
  int64_t output_stride[3];
  const int64_t* tokens;   // [B,S] or null
  const uint8_t* classes;  // [B,S] 0 word, 1 cls, 2 sep, 3 punctuation; or null
  bool matches;            // induction and duplicate_token are wanted
};

// The keys a row may see, before the arbitrary mask: first .. last; none if last < first.
struct KeySpan {
  int64_t first, last;
};

// Where query i stands among the keys, and its span. static: files of different instruction sets
// must not share a copy.
template <class T>
static HEADLAB_DEVICE int64_t row_place(const RowProblem<T>& p, int64_t i) {
  return p.cross ? i : p.keys - p.queries + i;
}
template <class T>
static HEADLAB_DEVICE KeySpan key_span(const RowProblem<T>& p, int64_t b, int64_t i) {
  const int64_t at = row_place(p, i);
  KeySpan s{0, (p.key_length ? p.key_length[b] : p.keys) - 1};
  if (p.causal && at < s.last) s.last = at;
  if (p.window > 0 && at - p.window + 1 > s.first) s.first = at - p.window + 1;
  if (p.window > 0 && !p.causal && at + p.window - 1 < s.last) s.last = at + p.window - 1;
  return s;
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

// sums, counts [kRowStatistics]; offsets [rows of the slot]: argmax_j a - i, or kNoRow.
template <class T>
using RowStatsSlot = void (*)(const RowProblem<T>&, int64_t slot, double* sums, double* counts,
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
