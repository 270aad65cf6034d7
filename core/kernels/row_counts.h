// What a row adds to its statistics, given the sums over its keys: shared by the kernels of the CPU
// and of CUDA, each of which makes those sums in its own way. For the CPU only aggregates that are
// given every field, and static functions (attention_rows.h).
#pragma once

#include <cmath>
#include <limits>

#include "core/kernels/row_stats.h"

namespace headlab {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

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
  T score = kLowest<T>;
  int64_t key = INT64_MAX, allowed = 0;

  HEADLAB_DEVICE void take(T z, int64_t j) {
    if (z > score || z != z || (z == score && j < key)) score = z, key = j;
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
  T Z = 0, zlog = 0, squares = 0, distance = 0, first = 0, second = 0, norm = 0;

  HEADLAB_DEVICE void join(const KeySums& o) {
    Z += o.Z, zlog += o.zlog, squares += o.squares, distance += o.distance;
    first += o.first, second += o.second, norm += o.norm;
  }
};

// Of e by the class of the key; largest: of a key that is no separator.
template <class T>
struct ClassSums {
  T cls = 0, sep = 0, punctuation = 0, largest = -1;

  HEADLAB_DEVICE void join(const ClassSums& o) {
    cls += o.cls, sep += o.sep, punctuation += o.punctuation;
    if (o.largest > largest) largest = o.largest;
  }
};

// Of e at keys that continue (induction) or repeat (duplicate_token) the query's token.
template <class T>
struct MatchSums {
  T after = 0, same = 0;
  int64_t any_after = 0, any_same = 0;

  HEADLAB_DEVICE void join(const MatchSums& o) {
    after += o.after, same += o.same, any_after += o.any_after, any_same += o.any_same;
  }
};

static HEADLAB_DEVICE inline void add(const RowTotals& to, RowStatistic which, double value) {
  to.sums[which] += value;
  to.counts[which] += 1;
}

template <class T>
static HEADLAB_DEVICE void add_classes(const ClassSums<T>& sums, double Z, const RowTotals& to) {
  add(to, kClsMass, sums.cls / Z);
  add(to, kSepMass, sums.sep / Z);
  add(to, kPunctuationMass, sums.punctuation / Z);
  if (sums.largest >= 0) add(to, kConfidence, sums.largest / Z);
}

template <class T>
static HEADLAB_DEVICE void add_matches(const MatchSums<T>& sums, double Z, const RowTotals& to) {
  if (sums.any_after) add(to, kInduction, sums.after / Z);
  if (sums.any_same) add(to, kDuplicateToken, sums.same / Z);
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

}  // namespace headlab
