// Which differences a paired t test finds: its power, by the noncentral t distribution. Pure
// functions; no torch in here.
#pragma once

#include <cstdint>

namespace headlab {

// Share of trials in which a difference that can be told is found.
inline constexpr double kPower = 0.8;

// P(T > t) of T = (Z + shift) / sqrt(C / freedom), Z standard normal, C of chi-square with
// `freedom` >= 1 degrees. Good to 1e-8 for t up to some hundreds. std::invalid_argument elsewhere.
double noncentral_t_above(double t, int64_t freedom, double shift);
// Of a two-sided test at `alpha` of n > 1 pairs whose true mean difference is `effect`, in standard
// deviations of a difference.
double paired_t_power(double effect, int64_t pairs, double alpha);
// The least effect that it finds with `power`, alpha < power <= 1 - 1e-9.
double tellable_effect(int64_t pairs, double alpha, double power = kPower);

}  // namespace headlab
