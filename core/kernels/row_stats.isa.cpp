// The streamed row statistics for one instruction set (the equations are
// those of the streaming softmax, with the whole row of scores in the first-level cache).
#include "core/kernels/row_stats_lanes.h"
#include "core/kernels/row_vectors.h"

namespace headlab::CPU_CAPABILITY {

// For the loops of row_stats_lanes.h that are not worth vectors.
struct OneLane {
  template <class T>
  using Total = double;
  bool leader() const { return true; }
  template <class Step>
  void each(int64_t first, int64_t last, const Step& step) const {
    for (int64_t j = first; j <= last; ++j) step(j);
  }
  template <class R, class Step>
  R reduce(int64_t first, int64_t last, R total, const Step& step) const {
    for (int64_t j = first; j <= last; ++j) step(total, j);
    return total;
  }
};

// z[r] = scale q k^T for rows i[0..3] of a head, keys up to `last`; z [4, padded].
template <class T>
void score_rows(const RowProblem<T>& p, int64_t b, int64_t h, const int64_t (&i)[4], int64_t last,
                T* z) {
  const T *keys = row_at(p.k, b, p.kv_head[h], 0), *q[4];
  for (int r = 0; r < 4; ++r) q[r] = row_at(p.q, b, h, i[r]);
  const Vec<T> scale(static_cast<T>(p.scale));
  for (int64_t j = 0; j <= last; j += Vec<T>::size()) {
    Vec<T> acc[4] = {Vec<T>(0), Vec<T>(0), Vec<T>(0), Vec<T>(0)};
    for (int64_t c = 0; c < p.d; ++c) {
      const auto key = Vec<T>::loadu(keys + c * p.k.stride[2] + j);
      for (int r = 0; r < 4; ++r) acc[r] = at::vec::fmadd(Vec<T>(q[r][c]), key, acc[r]);
    }
    for (int r = 0; r < 4; ++r) (acc[r] * scale).store(z + r * padded_keys(p) + j);
  }
}

// The whole vectors of a row that hold keys it may see begin here.
template <class T>
int64_t first_vector(const ScoredRow<T>& row) {
  return row.span.first / Vec<T>::size() * Vec<T>::size();
}

// Of scores that score_rows() made, which it masks.
template <class T>
Peak<T> score_keys(const OneLane&, const ScoredRow<T>& row) {
  if (row.span.last < row.span.first) return {kLowest<T>, 0, 0};
  const int64_t size = Vec<T>::size(), begin = first_vector(row);
  const int64_t end = (row.span.last + size) / size * size;
  const int64_t allowed = mask_scores(row.p, row.b, row.h, row.i, begin, end, row.z);
  Peak<T> peak{MapRow<T>{row.z + begin, end - begin}.highest(), row.span.first, allowed};
  if (counts(peak))
    while (row.z[peak.key] != peak.score) ++peak.key;
  return peak;
}

// Everything of one row that is a sum over keys, in one pass; exp(z - peak) replaces z.
template <class T>
KeySums<T> sum_keys(const OneLane&, const ScoredRow<T>& row, const Peak<T>& peak) {
  using V = Vec<T>;
  V vz(0), va(0), v2(0), vd(0), vx(0), vxx(0), vn(0);
  const V low(static_cast<T>(-80));
  const T* norms = value_norms(row);
  for (int64_t j = first_vector(row); j <= row.span.last; j += V::size()) {
    const auto t = V::loadu(row.z + j) - V(peak.score);
    const auto e = t.exp();
    e.store(row.z + j);
    const auto x = V::arange(static_cast<T>(j - peak.key), static_cast<T>(1));
    const auto ex = e * x;
    vz = vz + e;
    va = at::vec::fmadd(e, at::vec::maximum(t, low), va);  // 0 * -inf of a hidden key
    v2 = at::vec::fmadd(e, e, v2);
    vx = vx + ex;
    vxx = at::vec::fmadd(ex, x, vxx);
    vd = at::vec::fmadd(e, (x + V(static_cast<T>(peak.key - row.place))).abs(), vd);
    if (norms) {
      const int64_t left = row.span.last + 1 - j;
      vn = at::vec::fmadd(e, V::loadu(norms + j, left < V::size() ? left : V::size()), vn);
    }
  }
  return {sum_lanes(vz), sum_lanes(va),  sum_lanes(v2), sum_lanes(vd),
          sum_lanes(vx), sum_lanes(vxx), sum_lanes(vn)};
}

template <class T>
void stats_slot(const RowProblem<T>& p, int64_t slot, const RowTotals& to, int32_t* offsets,
                T* scratch) {
  const int64_t blocks = (p.queries + kRowsPerSlot - 1) / kRowsPerSlot;
  const int64_t b = slot / (p.H * blocks), h = slot / blocks % p.H;
  const int64_t begin = slot % blocks * kRowsPerSlot, counted = counted_queries(p, b);
  const int64_t end = begin + kRowsPerSlot < counted ? begin + kRowsPerSlot : counted;
  for (int64_t i = begin; i < end; i += 4) {
    int64_t group[4], last = -1;
    for (int r = 0; r < 4; ++r) {
      group[r] = i + r < end ? i + r : end - 1;
      const KeySpan s = key_span(p, b, group[r]);
      if (s.last > last) last = s.last;
    }
    score_rows(p, b, h, group, last, scratch);
    for (int64_t r = 0; r < 4 && i + r < end; ++r)
      offsets[i + r - begin] =
          count_row(OneLane(), scored_row(p, b, h, i + r, scratch + r * padded_keys(p)), to);
  }
}

template <class T>
double mixture_entropy(const OneLane&, const T* p, const T* q, const KeySpan& s) {
  using V = Vec<T>;
  V sum(0);
  const V half(static_cast<T>(0.5)), tiny(std::numeric_limits<T>::min());
  for (int64_t j = s.first / V::size() * V::size(); j <= s.last; j += V::size()) {
    const auto m = (V::loadu(p + j) + V::loadu(q + j)) * half;
    sum = at::vec::fmadd(m, at::vec::maximum(m, tiny).log(), sum);
  }
  return -static_cast<double>(sum_lanes(sum));
}

template <class T>
void divergence_slot(const RowProblem<T>& p, int64_t b, int64_t first, int64_t stride, double* sums,
                     double* counts, T* scratch) {
  const int64_t padded = padded_keys(p), counted = counted_queries(p, b);
  T* weights = scratch;  // [H, kJsRowsPerSlot, padded]
  int64_t group[kJsRowsPerSlot], n = 0;
  for (int64_t i = first; i < counted && n < kJsRowsPerSlot; i += stride) group[n++] = i;
  if (n == 0) return;
  for (int64_t r = n; r < kJsRowsPerSlot; ++r) group[r] = group[n - 1];
  double entropy[kMostHeads][kJsRowsPerSlot];
  for (int64_t h = 0; h < p.H; ++h) {
    T* z = weights + h * kJsRowsPerSlot * padded;
    score_rows(p, b, h, group, padded - 1, z);
    for (int64_t r = 0; r < n; ++r)
      entropy[h][r] = weigh_keys(OneLane(), scored_row(p, b, h, group[r], z + r * padded));
  }
  for (int64_t h = 0; h < p.H; ++h)
    for (int64_t g = h; g < p.H; ++g)
      for (int64_t r = 0; r < n; ++r) {
        if (entropy[h][r] < 0 || entropy[g][r] < 0) continue;
        const T* x = weights + (h * kJsRowsPerSlot + r) * padded;
        const T* y = weights + (g * kJsRowsPerSlot + r) * padded;
        const double js = g == h ? 0
                                 : mixture_entropy(OneLane(), x, y, key_span(p, b, group[r])) -
                                       (entropy[h][r] + entropy[g][r]) / 2;
        sums[h * p.H + g] += js;
        counts[h * p.H + g] += 1;
        if (g != h) sums[g * p.H + h] += js, counts[g * p.H + h] += 1;
      }
}

OfTypes<RowStatsKernels> row_stats_kernels() {
  return {{stats_slot<float>, divergence_slot<float>},
          {stats_slot<double>, divergence_slot<double>}};
}

}  // namespace headlab::CPU_CAPABILITY
