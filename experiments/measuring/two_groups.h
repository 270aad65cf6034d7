// Two groups that are compared by how many of them got somewhere and how long it took. Pure
// functions; no torch in here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace headlab {

// Fisher's exact test that the shares k of n and l of m are one: two-sided, the sum over all tables
// with these margins that are no likelier than this one. std::invalid_argument where k is not in
// 0..n or l not in 0..m.
double fisher_p_value(int64_t k, int64_t n, int64_t l, int64_t m);

// How long it took until something happened; not `happened` (censored): it had not until then.
struct Lasted {
  double time = 0;
  bool happened = false;
};

// The log-rank test (Mantel 1966) that both groups have one distribution of times. Its p is the
// share of all ways to deal the times to groups of these sizes that have at least this chi-square,
// where these are at most kMostDeals; else by the chi-square distribution, whose p is too small for
// few times. Deals assume that both groups are watched equally long.
struct LogRank {
  double chi_square = 0, p = 1;
  bool exact = true;
};
inline constexpr int64_t kMostDeals = 200'000;  // 10 and 10 have 184,756
LogRank log_rank(const std::vector<Lasted>& a, const std::vector<Lasted>& b);
// p of chi-square with one degree of freedom.
double chi_square_p_value(double chi_square);

// The time by which half got there, by Kaplan and Meier's estimate; none: fewer did.
std::optional<double> median_time(std::vector<Lasted> times);

}  // namespace headlab
