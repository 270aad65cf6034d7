// Whether a longer training would still change the order of the arms: the order at the full length
// against that at half of it. No torch in here.
#pragma once

#include <cmath>
#include <string>
#include <vector>

namespace headlab {

// The order counts as settled where the lower bound of its tau is above.
inline constexpr double kSettledAbove = 0.6;

// Losses that arms are ordered by: [arm][seed], the same seeds of all arms.
using LossesBySeed = std::vector<std::vector<double>>;

struct Settled {
  double tau = NAN;              // Kendall's, of the arms' means at half and at full length
  double low = NAN, high = NAN;  // 95 %, over seeds; NaN of fewer than three
  bool settled = false;
  std::string why = {};  // it is not; "": it is
};

// `starred`: arms whose difference to the baseline is reported at full length. `names`: of the
// arms, for `why`.
//
// The interval holds percentiles of tau over resampled seeds, a seed with all its losses at once,
// for seeds pair. One seed fewer is drawn than there are: with all n the spread of a mean comes out
// too small by (n - 1)/n, a third of its variance for three seeds, and with n - 1 it does not. Up
// to six seeds these are all draws, else 10,000 that are always the same. Where arms are level, a
// draw has them in any order, so that tau of draws lies lower than that of the means: the interval
// is widened to hold both, and errs towards "not settled". std::invalid_argument where losses are
// not as many, or not finite.
Settled settled_order(const LossesBySeed& half, const LossesBySeed& full, size_t baseline,
                      const std::vector<size_t>& starred, const std::vector<std::string>& names);

}  // namespace headlab
