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

struct Largest {
  double x;
  HEADLAB_DEVICE void join(const Largest& o) { x = o.x > x ? o.x : x; }
};

// Products become scores, -infinity where a key is hidden. Returns the highest.
template <class Lanes, class T>
HEADLAB_DEVICE T scored(const Lanes& lanes, const ScoredRow<T>& row, int64_t begin, int64_t end) {
  using X = typename Lanes::X;
  const auto& p = row.p;
  const Row<Lanes> z{lanes, row.z + begin, end - begin};
  const X scale(static_cast<T>(p.scale));
  if (row.allowed || p.bias.data || p.distance_bias) {
    if (p.scale != 1) z.each([&](const X& product, int64_t) { return product * scale; });
    mask_scores(lanes, p, row.b, row.h, row.i, begin, end, row.z);
    return z.highest();
  }
  // In one pass: at few keys a row, passes are what a row takes.
  const X hidden(kLowest<T>), first(static_cast<T>(row.span.first - begin)),
      last(static_cast<T>(row.span.last - begin));
  X most = hidden;
  z.each([&](const X& product, int64_t j) {
    const X key = Lanes::from(static_cast<T>(j));
    const X seen = Lanes::where(key > last, hidden, product * scale);
    const X score = Lanes::where(first > key, hidden, seen);
    most = Lanes::max(most, score);
    return score;
  });
  return lanes.most(most);
}

template <class Lanes, class T>
HEADLAB_DEVICE Peak<T> score_keys(const Lanes& lanes, const ScoredRow<T>& row) {
  using X = typename Lanes::X;
  const auto [first, last] = row.span;
  if (last < first) return {kLowest<T>, 0, 0};
  const int64_t begin = first_vector(row.span), end = vectors_end(row.span);
  Peak<T> peak{scored(lanes, row, begin, end), first, last - first + 1};
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
    before = Lanes::max(
        before, Lanes::where(Lanes::load(row.z + begin + j) == X(peak.score), left, X(T(0))));
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

// What the rows of a block leave for FinishedRows, which works on all of them at once: numbers
// [kRowNumbers][kColumns], a column a row. Those at keys and of classes are sums of e.
enum RowNumber : int {
  kPeak,        // the highest score; -infinity: the row does not count
  kPeakOffset,  // of the key that has it, from the row's place
  kAllowedKeys,
  kZ,
  kZLog,
  kSquares,
  kDistance,
  kFirstMoment,
  kSecondMoment,
  kNorm,
  kAtSelf,
  kAtFirst,
  kAtPrevious,
  kAtNext,
  kOutputSquare,
  kOfCls,
  kOfSep,
  kOfPunctuation,
  kLargest,  // of a key that is no separator; negative: there is none
  kAfter,
  kAnyAfter,
  kSame,
  kAnySame,
  kRowNumbers
};
constexpr int64_t kColumns = kRowLanes;

// Numbers of one row: the leader writes.
template <class Lanes, class T>
struct NumbersOfRow {
  const Lanes& lanes;
  T* column;

  template <class Value>
  HEADLAB_DEVICE void set(RowNumber which, Value value) const {
    if (lanes.leader()) column[which * kColumns] = static_cast<T>(value);
  }
};

template <class Lanes, class T>
HEADLAB_DEVICE NumbersOfRow<Lanes, T> to_column(const Lanes& lanes, T* column) {
  return {lanes, column};
}

template <class Lanes, class T>
HEADLAB_DEVICE void count_classes(const Lanes& lanes, const ScoredRow<T>& row,
                                  const NumbersOfRow<Lanes, T>& to) {
  using X = typename Lanes::X;
  const T* classes = row.p.classes + row.b * padded_keys(row.p);
  const int64_t begin = first_vector(row.span), end = vectors_end(row.span);
  const X zero(T(0)), none(T(-1)), first(static_cast<T>(row.span.first)),
      last(static_cast<T>(row.span.last));
  X cls = zero, sep = zero, punctuation = zero, most = none;
  lanes.each(end - begin, [&](int64_t in_use) {
    const int64_t j = begin + in_use;
    const X e = Lanes::load(row.z + j), of = Lanes::load(classes + j);
    cls = cls + Lanes::where(of == X(T(1)), e, zero);
    sep = sep + Lanes::where(of == X(T(2)), e, zero);
    punctuation = punctuation + Lanes::where(of == X(T(3)), e, zero);
    const X key = Lanes::from(static_cast<T>(j)), word = Lanes::where(of == X(T(2)), none, e);
    most = Lanes::max(most, Lanes::where(key > last, none, Lanes::where(first > key, none, word)));
  });
  to.set(kOfCls, lanes.sum(cls)), to.set(kOfSep, lanes.sum(sep));
  to.set(kOfPunctuation, lanes.sum(punctuation));
  if (!row.allowed) return to.set(kLargest, lanes.most(most));
  const auto largest =
      lanes.reduce(row.span.first, row.span.last, Largest{-1}, [&](Largest& s, int64_t j) {
        if (classes[j] != 2 && row.z[j] > s.x && allows(row, j)) s.x = row.z[j];
      });
  to.set(kLargest, largest.x);
}

// Of e at keys that continue (induction) or repeat (duplicate_token) the query's token.
template <class Lanes, class T>
HEADLAB_DEVICE void count_matches(const Lanes& lanes, const ScoredRow<T>& row,
                                  const NumbersOfRow<Lanes, T>& to) {
  using X = typename Lanes::X;
  const T* before = row.p.tokens + row.b * (1 + padded_keys(row.p));  // of each key
  const T* at = before + 1;
  const int64_t begin = first_vector(row.span), end = vectors_end(row.span);
  const X zero(T(0)), one(T(1)), mine(at[row.place]), place(static_cast<T>(row.place));
  X after = zero, any_after = zero, same = zero, any_same = zero;
  lanes.each(row.place + 1, [&](int64_t j) {
    const X key = Lanes::from(static_cast<T>(j));
    const X e = j >= begin && j < end ? Lanes::load(row.z + j) : zero;
    const X is_same =
        Lanes::where(place > key, Lanes::where(Lanes::load(at + j) == mine, one, zero), zero);
    const X is_after =
        Lanes::where(key > place, zero, Lanes::where(Lanes::load(before + j) == mine, one, zero));
    after = Lanes::fma(e, is_after, after), same = Lanes::fma(e, is_same, same);
    any_after = Lanes::max(any_after, is_after), any_same = Lanes::max(any_same, is_same);
  });
  to.set(kAfter, lanes.sum(after)), to.set(kAnyAfter, lanes.most(any_after));
  to.set(kSame, lanes.sum(same)), to.set(kAnySame, lanes.most(any_same));
}

template <class Lanes, class T>
HEADLAB_DEVICE T square_of_output(const Lanes& lanes, const ScoredRow<T>& row) {
  using X = typename Lanes::X;
  const T* o = row_at(row.p.output, row.b, row.h, row.i);
  X square(T(0));
  lanes.each(row.p.e, [&](int64_t c) {
    const X x = Lanes::load(o + c, row.p.e - c);
    square = Lanes::fma(x, x, square);
  });
  return lanes.sum(square);
}

// Writes what a row contributes into its column of numbers. Returns argmax_j a - i, or kNoRow if it
// does not count.
template <class Lanes, class T>
HEADLAB_DEVICE int32_t count_row(const Lanes& lanes, const ScoredRow<T>& row, T* column) {
  const auto& p = row.p;
  const auto to = to_column(lanes, column);
  const auto peak = score_keys(lanes, row);
  to.set(kPeak, counts(peak) ? peak.score : kLowest<T>);
  if (!counts(peak)) return kNoRow;
  const auto sum = sum_keys(lanes, row, peak);
  to.set(kPeakOffset, peak.key - row.place);
  to.set(kAllowedKeys, peak.allowed);
  to.set(kZ, sum.Z), to.set(kZLog, sum.zlog), to.set(kSquares, sum.squares);
  to.set(kDistance, sum.distance), to.set(kFirstMoment, sum.first);
  to.set(kSecondMoment, sum.second), to.set(kNorm, sum.norm);
  if (p.output.data) to.set(kOutputSquare, square_of_output(lanes, row));
  if (p.classes) count_classes(lanes, row, to);
  if (p.cross) return 0;
  to.set(kAtSelf, numerator(row, row.place)), to.set(kAtFirst, numerator(row, 0));
  to.set(kAtPrevious, numerator(row, row.place - 1));
  to.set(kAtNext, numerator(row, row.place + 1));
  if (p.tokens) count_matches(lanes, row, to);
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
