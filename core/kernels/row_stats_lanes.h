// The streamed row statistics for lanes that share one row: the arithmetic of the CUDA kernels, a
// warp a row. Without nvcc it is plain C++, so that tests hold it against the CPU's kernels.
//
// `Lanes` offers
//   reduce(first, last, R zero, step)  step(R&, j) once for each j, dealt out to the lanes, whose R
//                                      are joined by R::join, which must be commutative; all lanes
//                                      get the result and see what the others wrote
//   each(first, last, step)            the same without a result
//   leader()                           true on one lane, which writes what leaves the row
// What stands outside a step runs on every lane alike.
#pragma once

#include "core/kernels/row_counts.h"

namespace headlab {

template <class T>
constexpr T kTiny = std::numeric_limits<T>::min();

template <class T>
struct Sum {
  T x = 0;
  HEADLAB_DEVICE void join(const Sum& o) { x += o.x; }
};

template <class T, class Lanes>
HEADLAB_DEVICE Peak<T> score_keys(const Lanes& lanes, const ScoredRow<T>& row) {
  const auto& p = row.p;
  const T* q = row_at(p.q, row.b, row.h, row.i);
  const T* k = row_at(p.k, row.b, p.kv_head[row.h], 0);
  const T scale = static_cast<T>(p.scale);
  const T* distances = p.distance_bias ? p.distance_bias + row.h * (p.queries + p.keys - 1) +
                                             (p.keys - 1 - row.place)
                                       : nullptr;
  const T* bias = row_at(p.bias, row.b, row.h, row.i);
  return lanes.reduce(row.span.first, row.span.last, Peak<T>(), [&](Peak<T>& peak, int64_t j) {
    T z = 0;
    for (int64_t c = 0; c < p.d; ++c) z += q[c] * k[c * p.k.stride[2] + j];
    z *= scale;
    if (distances) z += distances[j];
    if (bias) z += bias[j * p.bias.stride[3]];
    if (allows(row, j))
      ++peak.allowed;
    else
      z = kLowest<T>;
    peak.take(z, j);
    row.z[j] = z;
  });
}

template <class T, class Lanes>
HEADLAB_DEVICE KeySums<T> sum_keys(const Lanes& lanes, const ScoredRow<T>& row,
                                   const Peak<T>& peak) {
  const T* norms = value_norms(row);
  return lanes.reduce(row.span.first, row.span.last, KeySums<T>(), [&](KeySums<T>& s, int64_t j) {
    const T t = row.z[j] - peak.score, e = std::exp(t), x = static_cast<T>(j - peak.key);
    row.z[j] = e;
    s.Z += e;
    s.zlog += e * (t > -80 ? t : T(-80));  // not 0 * -inf at a hidden key
    s.squares += e * e;
    s.first += e * x;
    s.second += e * x * x;
    s.distance += e * static_cast<T>(j > row.place ? j - row.place : row.place - j);
    if (norms) s.norm += e * norms[j];
  });
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_classes(const Lanes& lanes, const ScoredRow<T>& row, double Z,
                                  const RowTotals& to) {
  const uint8_t* classes = row.p.classes + row.b * row.p.keys;
  const auto sums =
      lanes.reduce(row.span.first, row.span.last, ClassSums<T>(), [&](ClassSums<T>& s, int64_t j) {
        const int of = classes[j] & 3;
        if (of == 1) s.cls += row.z[j];
        if (of == 2) s.sep += row.z[j];
        if (of == 3) s.punctuation += row.z[j];
        if (classes[j] != 2 && row.z[j] > s.largest && allows(row, j)) s.largest = row.z[j];
      });
  if (lanes.leader()) add_classes(sums, Z, to);
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_matches(const Lanes& lanes, const ScoredRow<T>& row, double Z,
                                  const RowTotals& to) {
  const int64_t* tokens = row.p.tokens + row.b * row.p.keys;
  const int64_t mine = tokens[row.place];
  const auto sums = lanes.reduce(0, row.place, MatchSums<T>(), [&](MatchSums<T>& s, int64_t j) {
    const T e = numerator(row, j);
    if (j > 0 && tokens[j - 1] == mine) s.after += e, ++s.any_after;
    if (j < row.place && tokens[j] == mine) s.same += e, ++s.any_same;
  });
  if (lanes.leader()) add_matches(sums, Z, to);
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_output(const Lanes& lanes, const ScoredRow<T>& row, const RowTotals& to) {
  const T* o = row_at(row.p.output, row.b, row.h, row.i);
  const auto square = lanes.reduce(0, row.p.e - 1, Sum<double>(), [&](Sum<double>& s, int64_t c) {
    s.x += static_cast<double>(o[c]) * o[c];
  });
  if (lanes.leader()) add(to, kOutputNorm, std::sqrt(square.x));
}

// Adds what a row contributes. Returns argmax_j a - i, or kNoRow if it does not count.
template <class T, class Lanes>
HEADLAB_DEVICE int32_t count_row(const Lanes& lanes, const ScoredRow<T>& row, const RowTotals& to) {
  const auto& p = row.p;
  if (row.i >= counted_queries(p, row.b)) return kNoRow;
  const auto peak = score_keys(lanes, row);
  if (!counts(peak)) return kNoRow;
  const auto sum = sum_keys(lanes, row, peak);
  if (lanes.leader()) add_row(row, peak, sum, to);
  if (p.output.data) count_output(lanes, row, to);
  if (p.classes) count_classes(lanes, row, sum.Z, to);
  if (p.cross) return 0;
  if (p.matches && p.tokens) count_matches(lanes, row, sum.Z, to);
  return static_cast<int32_t>(peak.key - row.place);
}

// The weights of a row, in row.z. Returns their entropy, or -1 if the row does not count.
template <class T, class Lanes>
HEADLAB_DEVICE double weigh_keys(const Lanes& lanes, const ScoredRow<T>& row) {
  const auto peak = score_keys(lanes, row);
  if (!counts(peak)) return -1;
  const auto sum = sum_keys(lanes, row, peak);
  const T inverse = 1 / sum.Z;
  lanes.each(row.span.first, row.span.last, [&](int64_t j) { row.z[j] *= inverse; });
  return std::log(static_cast<double>(sum.Z)) - sum.zlog / sum.Z;
}

// -sum m ln m of the mixture m = (p + q) / 2 of two rows' weights.
template <class T, class Lanes>
HEADLAB_DEVICE double mixture_entropy(const Lanes& lanes, const T* p, const T* q,
                                      const KeySpan& span) {
  const auto sum = lanes.reduce(span.first, span.last, Sum<T>(), [&](Sum<T>& s, int64_t j) {
    const T m = (p[j] + q[j]) / 2;
    s.x += m * std::log(m > kTiny<T> ? m : kTiny<T>);
  });
  return -static_cast<double>(sum.x);
}

}  // namespace headlab
