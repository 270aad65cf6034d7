// What follows from the numbers that rows left (row_count.h), for the rows of a block at once: a
// lane has a row here, not a key.
#pragma once

#include "core/kernels/row_count.h"

namespace headlab {

// Totals of the n-th rows of all blocks of a slot, so that no order of warps changes a sum.
struct ColumnTotals {
  double sums[kRowStatistics][kColumns], counts[kRowStatistics][kColumns];
  double maxima[kRowMaxima][kColumns];
};

// Adds all that follows from the numbers of rows `first` and on (`n` of them) of a head.
template <class Lanes, class T>
struct FinishedRows {
  using X = typename Lanes::X;
  const RowProblem<T>& p;
  int64_t b, h, first, n;
  const T* numbers;
  ColumnTotals& to;

  HEADLAB_DEVICE void finish(const Lanes& lanes) const {
    lanes.each(n, [&](int64_t r) { at_column(r); });
  }

 private:
  HEADLAB_DEVICE X number(RowNumber which, int64_t r) const {
    return Lanes::load(numbers + which * kColumns + r);
  }
  // `counted`: 1 where a row counts, else 0, and its value is not read.
  HEADLAB_DEVICE void add(RowStatistic which, int64_t r, const X& counted, const X& value) const {
    const X zero(T(0));
    Lanes::add(to.sums[which] + r, Lanes::where(counted > zero, value, zero));
    Lanes::add(to.counts[which] + r, counted);
  }

  HEADLAB_DEVICE void at_column(int64_t r) const {
    const X zero(T(0)), one(T(1)), peak = number(kPeak, r), Z = number(kZ, r);
    const X counted = Lanes::where(peak > X(kLowest<T>), one, zero);
    const X share = one / Z, log_Z = Lanes::log(Z);
    const X entropy = log_Z - number(kZLog, r) * share;
    if (p.has_scores) {
      add(kLse, r, counted, peak + log_Z);
      Lanes::raise(to.maxima[kMaxLogit] + r, peak);
    }
    add(kEntropy, r, counted, entropy);
    const X allowed = number(kAllowedKeys, r);
    add(kEntropyNormalized, r, both(counted, allowed > one), entropy / Lanes::log(allowed));
    add(kMaxWeight, r, counted, share);
    add(kParticipationRatio, r, counted, Z * Z / number(kSquares, r));
    if (p.value_norm) {
      const X weights =
          p.row_sum ? Lanes::load(p.row_sum + (b * p.H + h) * p.queries + first + r, n - r) : one;
      add(kValueWeightedNorm, r, counted, weights * number(kNorm, r) * share);
    }
    if (p.output.data) add(kOutputNorm, r, counted, Lanes::sqrt(number(kOutputSquare, r)));
    if (p.classes)
      of_classes(r, counted, share);
    else
      add(kConfidence, r, counted, share);
    if (!p.cross) of_places(r, counted, share);
  }

  HEADLAB_DEVICE void of_classes(int64_t r, const X& counted, const X& share) const {
    add(kClsMass, r, counted, number(kOfCls, r) * share);
    add(kSepMass, r, counted, number(kOfSep, r) * share);
    add(kPunctuationMass, r, counted, number(kOfPunctuation, r) * share);
    const X largest = number(kLargest, r);
    add(kConfidence, r, both(counted, largest >= X(T(0))), largest * share);
  }

  HEADLAB_DEVICE void of_places(int64_t r, const X& counted, const X& share) const {
    const X zero(T(0)), place = Lanes::from(static_cast<T>(row_place(p, first + r)));
    const X offset = number(kPeakOffset, r), x = number(kFirstMoment, r) * share;
    add(kMeanDistance, r, counted, number(kDistance, r) * share);
    add(kSignedOffset, r, counted, x + offset);
    add(kOffsetVariance, r, counted, number(kSecondMoment, r) * share - x * x);
    add(kSelfToken, r, counted, number(kAtSelf, r) * share);
    add(kFirstToken, r, counted, number(kAtFirst, r) * share);
    add(kPrevToken, r, both(counted, place > zero), number(kAtPrevious, r) * share);
    const int64_t keys = p.key_length ? p.key_length[b] : p.keys;
    if (!p.causal)
      add(kNextToken, r, both(counted, X(static_cast<T>(keys - 1)) > place),
          number(kAtNext, r) * share);
    add(kArgmaxDistance, r, counted, Lanes::abs(offset));
    if (!p.tokens) return;
    add(kInduction, r, both(counted, number(kAnyAfter, r) > zero), number(kAfter, r) * share);
    add(kDuplicateToken, r, both(counted, number(kAnySame, r) > zero), number(kSame, r) * share);
  }

  template <class Holds>
  static HEADLAB_DEVICE X both(const X& counted, const Holds& holds) {
    return Lanes::where(holds, counted, X(T(0)));
  }
};

}  // namespace headlab
