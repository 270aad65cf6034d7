// Statistics of a softmax row (row_stats.h), written once for all lanes: the equations are those of
// the streaming softmax.
#pragma once

#include "core/kernels/map_rows.h"
#include "core/kernels/row_stats.h"

namespace headlab {

// Query i of head h of example b.
template <class T>
struct ScoredRow {
  const RowProblem<T>& p;
  int64_t b, h, i, place;
  KeySpan span;
  T* z;                 // [padded] products, then scores, then exp(score - highest)
  const bool* allowed;  // of this row, or null
};

template <class T>
static HEADLAB_DEVICE ScoredRow<T> scored_row(const RowProblem<T>& p, int64_t b, int64_t h,
                                              int64_t i, T* z) {
  return {p, b, h, i, row_place(p, i), key_span(p, b, i), z, row_at(p.allowed, b, h, i)};
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
// The whole vectors of a row that hold keys it may see.
static HEADLAB_DEVICE inline int64_t first_vector(const KeySpan& span) {
  return span.first / kRowLanes * kRowLanes;
}
static HEADLAB_DEVICE inline int64_t vectors_end(const KeySpan& span) {
  return (span.last + kRowLanes) / kRowLanes * kRowLanes;
}

// The highest score, the lowest key that has it, and how many keys are allowed.
template <class T>
struct Peak {
  T score;
  int64_t key, allowed;
};
// False where no key is allowed, or a score is NaN.
template <class T>
static HEADLAB_DEVICE bool counts(const Peak<T>& peak) {
  return peak.score > kLowest<T>;
}

struct Count {
  int64_t n;
  HEADLAB_DEVICE void join(const Count& o) { n += o.n; }
};

// Sums over keys of e = exp(z - peak); x counts keys from the peak: far offsets do not cancel.
template <class X>
struct KeySums {
  X Z, zlog, squares, distance, first, second, norm;
};

// Of e by the class of the key; largest: of a key that is no separator.
struct ClassSums {
  double cls, sep, punctuation, largest;

  HEADLAB_DEVICE void join(const ClassSums& o) {
    cls += o.cls, sep += o.sep, punctuation += o.punctuation;
    if (o.largest > largest) largest = o.largest;
  }
};

// Of e at keys that continue (induction) or repeat (duplicate_token) the query's token.
struct MatchSums {
  double after, same;
  int64_t any_after, any_same;

  HEADLAB_DEVICE void join(const MatchSums& o) {
    after += o.after, same += o.same, any_after += o.any_after, any_same += o.any_same;
  }
};

struct Sum {
  double x;
  HEADLAB_DEVICE void join(const Sum& o) { x += o.x; }
};

// Products become scores.
template <class Lanes, class T>
HEADLAB_DEVICE Peak<T> score_keys(const Lanes& lanes, const ScoredRow<T>& row) {
  using X = typename Lanes::X;
  const auto& p = row.p;
  const auto [first, last] = row.span;
  if (last < first) return {kLowest<T>, 0, 0};
  const int64_t begin = first_vector(row.span), end = vectors_end(row.span);
  const Row<Lanes> z{lanes, row.z + begin, end - begin};
  if (const X scale(static_cast<T>(p.scale)); p.scale != 1)
    z.each([&](const X& product, int64_t) { return product * scale; });
  mask_scores(lanes, p, row.b, row.h, row.i, begin, end, row.z);
  Peak<T> peak{z.highest(), first, last - first + 1};
  if (row.allowed)
    peak.allowed = lanes
                       .reduce(first, last, Count{0},
                               [&](Count& seen, int64_t j) { seen.n += allows(row, j); })
                       .n;
  if (!counts(peak)) return peak;
  // Of places behind `begin`, the last of which is 0: keys beyond 2^24 are no float.
  const T n = static_cast<T>(end - begin);
  X before(T(0));
  lanes.each(end - begin, [&](int64_t j) {
    const X left = X(n) - Lanes::from(static_cast<T>(j));
    before = Lanes::max(before, Lanes::where(Lanes::load(z.z + j) == X(peak.score), left, X(T(0))));
  });
  peak.key = end - static_cast<int64_t>(lanes.most(before));
  return peak;
}

template <class Lanes, class T>
HEADLAB_DEVICE KeySums<T> sum_keys(const Lanes& lanes, const ScoredRow<T>& row,
                                   const Peak<T>& peak) {
  using X = typename Lanes::X;
  const T* norms = value_norms(row);
  const int64_t begin = first_vector(row.span), end = vectors_end(row.span);
  const X zero(T(0)), low(T(-80)), top(peak.score), away(static_cast<T>(peak.key - row.place));
  KeySums<X> s{zero, zero, zero, zero, zero, zero, zero};
  lanes.each(end - begin, [&](int64_t in_use) {
    const int64_t j = begin + in_use;
    const X t = Lanes::load(row.z + j) - top, e = Lanes::near_exp(t);
    const X x = Lanes::from(static_cast<T>(j - peak.key)), ex = e * x;
    Lanes::store(row.z + j, e);
    s.Z = s.Z + e;
    s.zlog = Lanes::fma(e, Lanes::max(t, low), s.zlog);  // not 0 * -inf at a hidden key
    s.squares = Lanes::fma(e, e, s.squares);
    s.first = s.first + ex;
    s.second = Lanes::fma(ex, x, s.second);
    s.distance = Lanes::fma(e, Lanes::abs(x + away), s.distance);
    if (norms) s.norm = Lanes::fma(e, Lanes::load(norms + j, row.p.keys - j), s.norm);
  });
  return {lanes.sum(s.Z),     lanes.sum(s.zlog),   lanes.sum(s.squares), lanes.sum(s.distance),
          lanes.sum(s.first), lanes.sum(s.second), lanes.sum(s.norm)};
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

template <class Lanes, class T>
HEADLAB_DEVICE void count_classes(const Lanes& lanes, const ScoredRow<T>& row, double Z,
                                  const RowTotals& to) {
  const uint8_t* classes = row.p.classes + row.b * row.p.keys;
  const ClassSums none{0, 0, 0, -1};
  const auto sums = lanes.reduce(row.span.first, row.span.last, none, [&](ClassSums& s, int64_t j) {
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

template <class Lanes, class T>
HEADLAB_DEVICE void count_matches(const Lanes& lanes, const ScoredRow<T>& row, double Z,
                                  const RowTotals& to) {
  const int64_t* tokens = row.p.tokens + row.b * row.p.keys;
  const int64_t mine = tokens[row.place];
  const auto sums = lanes.reduce(0, row.place, MatchSums{}, [&](MatchSums& s, int64_t j) {
    const T e = numerator(row, j);
    if (j > 0 && tokens[j - 1] == mine) s.after += e, ++s.any_after;
    if (j < row.place && tokens[j] == mine) s.same += e, ++s.any_same;
  });
  if (!lanes.leader()) return;
  if (sums.any_after) add(to, kInduction, sums.after / Z);
  if (sums.any_same) add(to, kDuplicateToken, sums.same / Z);
}

template <class Lanes, class T>
HEADLAB_DEVICE void count_output(const Lanes& lanes, const ScoredRow<T>& row, const RowTotals& to) {
  const T* o = row_at(row.p.output, row.b, row.h, row.i);
  const auto square = lanes.reduce(
      0, row.p.e - 1, Sum{0}, [&](Sum& s, int64_t c) { s.x += static_cast<double>(o[c]) * o[c]; });
  if (lanes.leader()) add(to, kOutputNorm, std::sqrt(square.x));
}

// Adds what a row contributes. Returns argmax_j a - i, or kNoRow if it does not count.
template <class Lanes, class T>
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
template <class Lanes, class T>
HEADLAB_DEVICE double weigh_keys(const Lanes& lanes, const ScoredRow<T>& row) {
  const auto peak = score_keys(lanes, row);
  if (!counts(peak)) return -1;
  const auto sum = sum_keys(lanes, row, peak);
  using X = typename Lanes::X;
  const int64_t begin = first_vector(row.span);
  const X inverse(1 / sum.Z);
  Row<Lanes>{lanes, row.z + begin, vectors_end(row.span) - begin}.each(
      [&](const X& e, int64_t) { return e * inverse; });
  return std::log(static_cast<double>(sum.Z)) - sum.zlog / sum.Z;
}

// -sum m ln m of the mixture m = (p + q) / 2 of two rows' weights.
template <class Lanes, class T>
HEADLAB_DEVICE double mixture_entropy(const Lanes& lanes, const T* p, const T* q,
                                      const KeySpan& span) {
  using X = typename Lanes::X;
  const int64_t begin = first_vector(span);
  const X half(T(0.5)), tiny(kTiny<T>);
  X sum(T(0));
  lanes.each(vectors_end(span) - begin, [&](int64_t in_use) {
    const X m = (Lanes::load(p + begin + in_use) + Lanes::load(q + begin + in_use)) * half;
    sum = Lanes::fma(m, Lanes::log(Lanes::max(m, tiny)), sum);
  });
  return -static_cast<double>(lanes.sum(sum));
}

}  // namespace headlab
