// The streamed row statistics for lanes that share one row: on CUDA a warp a row. The CPU's kernels
// have one lane, and make the sums over all keys in vectors instead. Without nvcc this is plain
// C++, so that tests hold it against those.
//
// `Lanes` offers
//   Total<T>                           the type of sums over the few keys that are of a class
//   reduce(first, last, R zero, step)  step(R&, j) once for each j, dealt out to the lanes, whose R
//                                      are joined by R::join, which must be commutative; all lanes
//                                      get the result and see what the others wrote
//   each(first, last, step)            the same without a result
//   leader()                           true on one lane, which writes what leaves the row
// What stands outside a step runs on every lane alike. Functions without Lanes are static, and
// structs have no constructors, as in attention_rows.h.
#pragma once

#include <cmath>
#include <limits>

#include "core/kernels/row_stats.h"

namespace headlab {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();
template <class T>
constexpr T kTiny = std::numeric_limits<T>::min();

// Query i of head h of example b, with room for its scores.
template <class T>
struct ScoredRow {
  const RowProblem<T>& p;
  int64_t b, h, i, place;
  KeySpan span;
  T* z;                 // [S] scores, then exp(score - highest)
  const bool* allowed;  // of this row, or null
};

template <class T>
static HEADLAB_DEVICE ScoredRow<T> scored_row(const RowProblem<T>& p, int64_t b, int64_t h,
                                              int64_t i, T* room) {
  return {p, b, h, i, row_place(p, i), key_span(p, b, i), room, row_at(p.allowed, b, h, i)};
}
template <class T>
static HEADLAB_DEVICE bool allows(const ScoredRow<T>& row, int64_t j) {
  return !row.allowed || row.allowed[j * row.p.allowed.stride[3]];
}
// exp(score - highest) of any key.
template <class T>
static HEADLAB_DEVICE T numerator(const ScoredRow<T>& row, int64_t j) {
  return j >= row.span.first && j <= row.span.last ? row.z[j] : T(0);
}
// norm(W_O^h v_j) [S], or null.
template <class T>
static HEADLAB_DEVICE const T* value_norms(const ScoredRow<T>& row) {
  const auto& p = row.p;
  return p.value_norm ? p.value_norm + (row.b * p.H + row.h) * p.keys : nullptr;
}

// The highest score, the lowest key that has it (a NaN stays), and how many keys are allowed.
template <class T>
struct Peak {
  T score;
  int64_t key, allowed;

  HEADLAB_DEVICE void take(T z, int64_t j) {
    if (z > score || std::isnan(z) || (z == score && j < key)) score = z, key = j;
  }
  HEADLAB_DEVICE void join(const Peak& o) {
    take(o.score, o.key);
    allowed += o.allowed;
  }
};
// False where no key is allowed, or a score is NaN.
template <class T>
static HEADLAB_DEVICE bool counts(const Peak<T>& peak) {
  return peak.score > kLowest<T>;
}

// Sums over keys of e = exp(z - peak); x counts keys from the peak: far offsets do not cancel.
template <class T>
struct KeySums {
  T Z, zlog, squares, distance, first, second, norm;

  HEADLAB_DEVICE void join(const KeySums& o) {
    Z += o.Z, zlog += o.zlog, squares += o.squares, distance += o.distance;
    first += o.first, second += o.second, norm += o.norm;
  }
};

// Of e by the class of the key; largest: of a key that is no separator.
template <class T>
struct ClassSums {
  T cls, sep, punctuation, largest;

  HEADLAB_DEVICE void join(const ClassSums& o) {
    cls += o.cls, sep += o.sep, punctuation += o.punctuation;
    if (o.largest > largest) largest = o.largest;
  }
};

// Of e at keys that continue (induction) or repeat (duplicate_token) the query's token.
template <class T>
struct MatchSums {
  T after, same;
  int64_t any_after, any_same;

  HEADLAB_DEVICE void join(const MatchSums& o) {
    after += o.after, same += o.same, any_after += o.any_after, any_same += o.any_same;
  }
};

template <class T>
struct Sum {
  T x;
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
  const Peak<T> none{kLowest<T>, INT64_MAX, 0};
  return lanes.reduce(row.span.first, row.span.last, none, [&](Peak<T>& peak, int64_t j) {
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
  return lanes.reduce(row.span.first, row.span.last, KeySums<T>{}, [&](KeySums<T>& s, int64_t j) {
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

static HEADLAB_DEVICE inline void add(const RowTotals& to, RowStatistic which, double value) {
  to.sums[which] += value;
  to.counts[which] += 1;
}

// All that follows from the sums over keys.
template <class T>
static HEADLAB_DEVICE void add_row(const ScoredRow<T>& row, const Peak<T>& peak,
                                   const KeySums<T>& sum, const RowTotals& to) {
  const auto& p = row.p;
  const double Z = sum.Z, log_Z = std::log(Z), entropy = log_Z - sum.zlog / Z;
  if (p.has_scores) {
    add(to, kLse, peak.score + log_Z);
    if (peak.score > to.maxima[kMaxLogit]) to.maxima[kMaxLogit] = peak.score;
  }
  add(to, kEntropy, entropy);
  if (peak.allowed >= 2)
    add(to, kEntropyNormalized, entropy / std::log(static_cast<double>(peak.allowed)));
  add(to, kMaxWeight, 1 / Z);
  add(to, kParticipationRatio, Z * Z / sum.squares);
  if (p.value_norm) {
    const double weights = p.row_sum ? p.row_sum[(row.b * p.H + row.h) * p.queries + row.i] : T(1);
    add(to, kValueWeightedNorm, weights * sum.norm / Z);
  }
  if (!p.classes) add(to, kConfidence, 1 / Z);
  if (p.cross) return;
  const int64_t place = row.place, keys = p.key_length ? p.key_length[row.b] : p.keys;
  const double x = sum.first / Z, offset = static_cast<double>(peak.key - place);
  add(to, kMeanDistance, sum.distance / Z);
  add(to, kSignedOffset, x + offset);
  add(to, kOffsetVariance, sum.second / Z - x * x);
  add(to, kSelfToken, numerator(row, place) / Z);
  add(to, kFirstToken, numerator(row, 0) / Z);
  if (place >= 1) add(to, kPrevToken, numerator(row, place - 1) / Z);
  if (!p.causal && place + 1 < keys) add(to, kNextToken, numerator(row, place + 1) / Z);
  add(to, kArgmaxDistance, std::abs(offset));
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_classes(const Lanes& lanes, const ScoredRow<T>& row, double Z,
                                  const RowTotals& to) {
  using Sums = ClassSums<typename Lanes::template Total<T>>;
  const uint8_t* classes = row.p.classes + row.b * row.p.keys;
  const Sums none{0, 0, 0, -1};
  const auto sums = lanes.reduce(row.span.first, row.span.last, none, [&](Sums& s, int64_t j) {
    const int of = classes[j] & 3;
    if (of == 1) s.cls += row.z[j];
    if (of == 2) s.sep += row.z[j];
    if (of == 3) s.punctuation += row.z[j];
    if (classes[j] != 2 && row.z[j] > s.largest && allows(row, j)) s.largest = row.z[j];
  });
  if (!lanes.leader()) return;
  add(to, kClsMass, sums.cls / Z);
  add(to, kSepMass, sums.sep / Z);
  add(to, kPunctuationMass, sums.punctuation / Z);
  if (sums.largest >= 0) add(to, kConfidence, sums.largest / Z);
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_matches(const Lanes& lanes, const ScoredRow<T>& row, double Z,
                                  const RowTotals& to) {
  using Sums = MatchSums<typename Lanes::template Total<T>>;
  const int64_t* tokens = row.p.tokens + row.b * row.p.keys;
  const int64_t mine = tokens[row.place];
  const auto sums = lanes.reduce(0, row.place, Sums{}, [&](Sums& s, int64_t j) {
    const T e = numerator(row, j);
    if (j > 0 && tokens[j - 1] == mine) s.after += e, ++s.any_after;
    if (j < row.place && tokens[j] == mine) s.same += e, ++s.any_same;
  });
  if (!lanes.leader()) return;
  if (sums.any_after) add(to, kInduction, sums.after / Z);
  if (sums.any_same) add(to, kDuplicateToken, sums.same / Z);
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_output(const Lanes& lanes, const ScoredRow<T>& row, const RowTotals& to) {
  const T* o = row_at(row.p.output, row.b, row.h, row.i);
  const auto square = lanes.reduce(0, row.p.e - 1, Sum<double>{0}, [&](Sum<double>& s, int64_t c) {
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
  const auto sum = lanes.reduce(span.first, span.last, Sum<T>{0}, [&](Sum<T>& s, int64_t j) {
    const T m = (p[j] + q[j]) / 2;
    s.x += m * std::log(m > kTiny<T> ? m : kTiny<T>);
  });
  return -static_cast<double>(sum.x);
}

}  // namespace headlab
