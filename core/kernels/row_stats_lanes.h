// The streamed row statistics for lanes that share one row: the arithmetic of the CUDA kernels, a
// warp a row. Without nvcc it is plain C++, so that tests hold it against the CPU's kernels.
//
// Keys come transposed, k [B,Hkv,d,S] with S dense and strides over (b, kv head, c): neighbouring
// lanes then read neighbouring numbers. `Lanes` offers
//   reduce(first, last, R zero, step)  step(R&, j) once for each j, dealt out to the lanes, whose R
//                                      are joined by R::join, which must be commutative; all lanes
//                                      get the result and see what the others wrote
//   each(first, last, step)            the same without a result
//   leader()                           true on one lane, which writes what leaves the row
// What stands outside a step runs on every lane alike.
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
struct LaneRow {
  const RowProblem<T>& p;
  int64_t b, h, i, place;
  KeySpan span;
  T* z;                 // [S] scores, then exp(score - highest)
  const bool* allowed;  // of this row, or null

  HEADLAB_DEVICE LaneRow(const RowProblem<T>& problem, int64_t b_, int64_t h_, int64_t i_, T* room)
      : p(problem),
        b(b_),
        h(h_),
        i(i_),
        place(row_place(p, i)),
        span(key_span(p, b, i)),
        z(room),
        allowed(row_at(p.allowed, b, h, i)) {}
  HEADLAB_DEVICE bool allows(int64_t j) const {
    return !allowed || allowed[j * p.allowed.stride[3]];
  }
  HEADLAB_DEVICE double at(int64_t j) const {
    return j >= span.first && j <= span.last ? z[j] : T(0);
  }
};

// The highest score, the lowest key that has it (a NaN stays), and how many keys are allowed.
template <class T>
struct Peak {
  T score = kLowest<T>;
  int64_t key = INT64_MAX, allowed = 0;

  HEADLAB_DEVICE void take(T z, int64_t j) {
    if (z > score || z != z || (z == score && j < key)) score = z, key = j;
  }
  HEADLAB_DEVICE void join(const Peak& o) {
    take(o.score, o.key);
    allowed += o.allowed;
  }
  HEADLAB_DEVICE bool counts() const { return score > kLowest<T>; }
};

// Sums over keys of e = exp(z - peak); x counts keys from the peak: far offsets do not cancel.
template <class T>
struct KeySums {
  T Z = 0, zlog = 0, squares = 0, distance = 0, first = 0, second = 0, norm = 0;

  HEADLAB_DEVICE void join(const KeySums& o) {
    Z += o.Z, zlog += o.zlog, squares += o.squares, distance += o.distance;
    first += o.first, second += o.second, norm += o.norm;
  }
};

template <class T>
struct Sum {
  T x = 0;
  HEADLAB_DEVICE void join(const Sum& o) { x += o.x; }
};

template <class T>
struct ClassSums {
  T cls = 0, sep = 0, punctuation = 0, largest = -1;  // largest: of a key that is no separator

  HEADLAB_DEVICE void join(const ClassSums& o) {
    cls += o.cls, sep += o.sep, punctuation += o.punctuation;
    if (o.largest > largest) largest = o.largest;
  }
};

template <class T>
struct MatchSums {
  T after = 0, same = 0;
  int64_t any_after = 0, any_same = 0;

  HEADLAB_DEVICE void join(const MatchSums& o) {
    after += o.after, same += o.same, any_after += o.any_after, any_same += o.any_same;
  }
};

template <class T, class Lanes>
HEADLAB_DEVICE Peak<T> score_keys(const Lanes& lanes, const LaneRow<T>& row) {
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
    if (row.allows(j))
      ++peak.allowed;
    else
      z = kLowest<T>;
    peak.take(z, j);
    row.z[j] = z;
  });
}

template <class T, class Lanes>
HEADLAB_DEVICE KeySums<T> sum_keys(const Lanes& lanes, const LaneRow<T>& row, const Peak<T>& peak) {
  const auto& p = row.p;
  const T* norms = p.value_norm ? p.value_norm + (row.b * p.H + row.h) * p.keys : nullptr;
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

// Where the leader adds what rows contribute.
struct LaneCounter : RowTotals {
  bool leader;

  HEADLAB_DEVICE void add(RowStatistic which, double value) const {
    if (!leader) return;
    sums[which] += value;
    counts[which] += 1;
  }
  HEADLAB_DEVICE void raise(RowMaximum which, double value) const {
    if (leader && value > maxima[which]) maxima[which] = value;
  }
};

template <class T, class Lanes>
HEADLAB_DEVICE void count_key_classes(const Lanes& lanes, const LaneRow<T>& row, double Z,
                                      const LaneCounter& out) {
  const uint8_t* classes = row.p.classes + row.b * row.p.keys;
  const auto sums =
      lanes.reduce(row.span.first, row.span.last, ClassSums<T>(), [&](ClassSums<T>& s, int64_t j) {
        const int of = classes[j] & 3;
        if (of == 1) s.cls += row.z[j];
        if (of == 2) s.sep += row.z[j];
        if (of == 3) s.punctuation += row.z[j];
        if (classes[j] != 2 && row.z[j] > s.largest && row.allows(j)) s.largest = row.z[j];
      });
  out.add(kClsMass, sums.cls / Z);
  out.add(kSepMass, sums.sep / Z);
  out.add(kPunctuationMass, sums.punctuation / Z);
  if (sums.largest >= 0) out.add(kConfidence, sums.largest / Z);
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_token_matches(const Lanes& lanes, const LaneRow<T>& row, double Z,
                                        const LaneCounter& out) {
  const int64_t* tokens = row.p.tokens + row.b * row.p.keys;
  const int64_t mine = tokens[row.place];
  const auto sums = lanes.reduce(0, row.place, MatchSums<T>(), [&](MatchSums<T>& s, int64_t j) {
    const T e = static_cast<T>(row.at(j));
    if (j > 0 && tokens[j - 1] == mine) s.after += e, ++s.any_after;
    if (j < row.place && tokens[j] == mine) s.same += e, ++s.any_same;
  });
  if (sums.any_after) out.add(kInduction, sums.after / Z);
  if (sums.any_same) out.add(kDuplicateToken, sums.same / Z);
}

template <class T, class Lanes>
HEADLAB_DEVICE void count_output(const Lanes& lanes, const LaneRow<T>& row,
                                 const LaneCounter& out) {
  const auto& p = row.p;
  const T* o = row_at(p.output, row.b, row.h, row.i);
  const auto square = lanes.reduce(0, p.e - 1, Sum<double>(), [&](Sum<double>& s, int64_t c) {
    s.x += static_cast<double>(o[c]) * o[c];
  });
  out.add(kOutputNorm, std::sqrt(square.x));
}

// Adds what a row contributes. Returns argmax_j a - i, or kNoRow if it does not count.
template <class T, class Lanes>
HEADLAB_DEVICE int32_t count_row(const Lanes& lanes, const LaneRow<T>& row,
                                 const LaneCounter& out) {
  const auto& p = row.p;
  if (row.i >= (p.query_length ? p.query_length[row.b] : p.queries)) return kNoRow;
  const auto peak = score_keys(lanes, row);
  if (!peak.counts()) return kNoRow;
  const auto sum = sum_keys(lanes, row, peak);
  const double Z = sum.Z, log_Z = std::log(Z), entropy = log_Z - sum.zlog / Z;
  if (p.has_scores) out.add(kLse, peak.score + log_Z), out.raise(kMaxLogit, peak.score);
  out.add(kEntropy, entropy);
  if (peak.allowed >= 2)
    out.add(kEntropyNormalized, entropy / std::log(static_cast<double>(peak.allowed)));
  out.add(kMaxWeight, 1 / Z);
  out.add(kParticipationRatio, Z * Z / sum.squares);
  if (p.value_norm) out.add(kValueWeightedNorm, row_sum(p, row.b, row.h, row.i) * sum.norm / Z);
  if (p.output.data) count_output(lanes, row, out);
  if (p.classes)
    count_key_classes(lanes, row, Z, out);
  else
    out.add(kConfidence, 1 / Z);
  if (p.cross) return 0;
  const int64_t place = row.place, keys = p.key_length ? p.key_length[row.b] : p.keys;
  const double x = sum.first / Z, offset = static_cast<double>(peak.key - place);
  out.add(kMeanDistance, sum.distance / Z);
  out.add(kSignedOffset, x + offset);
  out.add(kOffsetVariance, sum.second / Z - x * x);
  out.add(kSelfToken, row.at(place) / Z);
  out.add(kFirstToken, row.at(0) / Z);
  if (place >= 1) out.add(kPrevToken, row.at(place - 1) / Z);
  if (!p.causal && place + 1 < keys) out.add(kNextToken, row.at(place + 1) / Z);
  out.add(kArgmaxDistance, std::abs(offset));
  if (p.matches && p.tokens) count_token_matches(lanes, row, Z, out);
  return static_cast<int32_t>(peak.key - place);
}

// The weights of a row, in row.z. Returns their entropy, or -1 if the row does not count.
template <class T, class Lanes>
HEADLAB_DEVICE double weigh_keys(const Lanes& lanes, const LaneRow<T>& row) {
  const auto peak = score_keys(lanes, row);
  if (!peak.counts()) return -1;
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

// W_O^hT W_O^h [e,e] of head h: its entry (c, x).
template <class T>
HEADLAB_DEVICE T gram_entry(const RowProblem<T>& p, int64_t h, int64_t c, int64_t x) {
  const T* w = p.output_weight + h * p.e;
  T sum = 0;
  for (int64_t row = 0; row < p.D; ++row)
    sum += w[row * p.output_weight_stride + c] * w[row * p.output_weight_stride + x];
  return sum;
}

// norm(W_O^h v_j) into value_norm, of the head's gram [e,e].
template <class T, class Lanes>
HEADLAB_DEVICE void norm_value(const Lanes& lanes, const RowProblem<T>& p, const T* gram, int64_t b,
                               int64_t h, int64_t j) {
  const T* v = row_at(p.v, b, p.kv_head[h], j);
  const auto square = lanes.reduce(0, p.e - 1, Sum<T>(), [&](Sum<T>& s, int64_t c) {
    T image = 0;
    for (int64_t x = 0; x < p.e; ++x) image += gram[x * p.e + c] * v[x];
    s.x += image * v[c];
  });
  if (lanes.leader())
    p.value_norm[(b * p.H + h) * p.keys + j] =
        square.x < 0 ? T(0) : std::sqrt(square.x);  // NaN stays
}

}  // namespace headlab
