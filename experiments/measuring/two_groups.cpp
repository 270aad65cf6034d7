#include "experiments/measuring/two_groups.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace headlab {
namespace {

double log_choose(int64_t n, int64_t k) {
  const auto log_factorial = [](int64_t m) { return std::lgamma(static_cast<double>(m + 1)); };
  return log_factorial(n) - log_factorial(k) - log_factorial(n - k);
}

void sort_by_time(std::vector<Lasted>& times) {
  std::ranges::stable_sort(times, {}, &Lasted::time);
}

// What happened at one time, and of how many that were there until then.
struct Happened {
  size_t first = 0, end = 0;  // among those sorted by time
  int64_t count = 0, at_risk = 0;
};

std::vector<Happened> times_of(const std::vector<Lasted>& sorted) {
  std::vector<Happened> all;
  for (size_t i = 0; i < sorted.size();) {
    Happened one{.first = i, .end = i, .at_risk = std::ssize(sorted) - static_cast<int64_t>(i)};
    for (; one.end < sorted.size() && sorted[one.end].time == sorted[i].time; ++one.end)
      one.count += sorted[one.end].happened;
    all.push_back(one);
    i = one.end;
  }
  return all;
}

// `mine[i]`: whether the i-th of them is of the first group.
double log_rank_chi_square(const std::vector<Lasted>& sorted, const std::vector<Happened>& times,
                           const std::vector<char>& mine) {
  double excess = 0, variance = 0;
  int64_t of_mine = std::count(mine.begin(), mine.end(), 1);
  for (const auto& at : times) {
    int64_t leave = 0, happened = 0;
    for (size_t i = at.first; i < at.end; ++i)
      if (mine[i]) ++leave, happened += sorted[i].happened;
    const auto count = static_cast<double>(at.count), there = static_cast<double>(at.at_risk);
    const double share = static_cast<double>(of_mine) / there;
    excess += static_cast<double>(happened) - count * share;
    if (there > 1) variance += count * share * (1 - share) * (there - count) / (there - 1);
    of_mine -= leave;
  }
  return variance > 0 ? excess * excess / variance : 0;
}

}  // namespace

double fisher_p_value(int64_t k, int64_t n, int64_t l, int64_t m) {
  if (k < 0 || k > n || l < 0 || l > m)
    throw std::invalid_argument("Fisher's test: k must be in 0..n and l in 0..m");
  const int64_t both = k + l;
  const auto log_p = [&](int64_t of_first) {
    return log_choose(n, of_first) + log_choose(m, both - of_first) - log_choose(n + m, both);
  };
  constexpr double kRounding = 1e-7;
  double p = 0;
  for (int64_t one = std::max<int64_t>(0, both - m); one <= std::min(both, n); ++one)
    if (log_p(one) <= log_p(k) + kRounding) p += std::exp(log_p(one));
  return std::min(1.0, p);
}

double chi_square_p_value(double chi_square) { return std::erfc(std::sqrt(chi_square / 2)); }

LogRank log_rank(const std::vector<Lasted>& a, const std::vector<Lasted>& b) {
  // Both groups are merged by time; at the same time the first group's come first.
  auto first = a, second = b;
  sort_by_time(first), sort_by_time(second);
  std::vector<Lasted> sorted;
  std::vector<char> mine;
  for (auto x = first.begin(), y = second.begin(); x != first.end() || y != second.end();) {
    mine.push_back(y == second.end() || (x != first.end() && x->time <= y->time));
    sorted.push_back(mine.back() ? *x++ : *y++);
  }
  const auto times = times_of(sorted);
  LogRank found{.chi_square = log_rank_chi_square(sorted, times, mine)};
  const double deals = std::exp(log_choose(std::ssize(sorted), std::ssize(a)));
  if (deals > kMostDeals + 0.5) {
    found.p = chi_square_p_value(found.chi_square), found.exact = false;
    return found;
  }
  constexpr double kRounding = 1e-9;
  int64_t all = 0, as_far = 0;
  std::sort(mine.begin(), mine.end());
  do {
    ++all;
    as_far += log_rank_chi_square(sorted, times, mine) >= found.chi_square - kRounding;
  } while (std::next_permutation(mine.begin(), mine.end()));
  found.p = static_cast<double>(as_far) / static_cast<double>(all);
  return found;
}

std::optional<double> median_time(std::vector<Lasted> times) {
  sort_by_time(times);
  constexpr double kRounding = 1e-12;
  double left = 1;
  for (const auto& at : times_of(times)) {
    left *= 1 - static_cast<double>(at.count) / static_cast<double>(at.at_risk);
    if (left <= 0.5 + kRounding) return times[at.first].time;
  }
  return std::nullopt;
}

}  // namespace headlab
