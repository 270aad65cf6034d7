#include "experiments/comparison/settled.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "experiments/measuring/differences.h"
#include "experiments/measuring/kendall.h"

namespace headlab {
namespace {

constexpr double kOutside = 0.05;  // of a 95 % interval
constexpr size_t kDraws = 10'000;

size_t seeds_of(const LossesBySeed& half, const LossesBySeed& full, size_t arms) {
  if (half.size() != arms || full.size() != arms || arms == 0)
    throw std::invalid_argument("order of arms: losses and names of the same arms, at least one");
  const size_t seeds = full[0].size();
  for (const auto* losses : {&half, &full})
    for (const auto& of_arm : *losses)
      if (of_arm.size() != seeds || seeds == 0 ||
          !std::all_of(of_arm.begin(), of_arm.end(),
                       [](double loss) { return std::isfinite(loss); }))
        throw std::invalid_argument("order of arms: as many losses of each, all finite");
  return seeds;
}

double mean_over(const std::vector<double>& losses, const std::vector<size_t>& seeds) {
  double sum = 0;
  for (const size_t seed : seeds) sum += losses[seed];
  return sum / static_cast<double>(seeds.size());
}

double tau_over(const LossesBySeed& half, const LossesBySeed& full,
                const std::vector<size_t>& seeds) {
  std::vector<double> at_half, at_full;
  for (size_t arm = 0; arm < full.size(); ++arm) {
    at_half.push_back(mean_over(half[arm], seeds));
    at_full.push_back(mean_over(full[arm], seeds));
  }
  return kendall_tau(at_half, at_full);
}

// Each way to draw one seed fewer than there are, with replacement; of too many a sample.
template <class Use>
void each_draw(size_t seeds, const Use& use) {
  std::vector<size_t> drawn(seeds - 1, 0);
  if (std::pow(seeds, seeds - 1) > kDraws) {
    std::mt19937_64 random(0);
    for (size_t n = 0; n < kDraws; ++n) {
      for (auto& seed : drawn) seed = random() % seeds;
      use(drawn);
    }
    return;
  }
  while (true) {
    use(drawn);
    size_t place = 0;
    while (place < drawn.size() && ++drawn[place] == seeds) drawn[place++] = 0;
    if (place == drawn.size()) return;
  }
}

void add_tau_interval(Settled& found, const LossesBySeed& half, const LossesBySeed& full,
                      size_t seeds) {
  std::vector<double> taus;
  each_draw(seeds, [&](const std::vector<size_t>& drawn) {
    const double tau = tau_over(half, full, drawn);
    taus.push_back(std::isnan(tau) ? 0 : tau);  // all arms level: no order is like another
  });
  std::sort(taus.begin(), taus.end());
  const auto outside = static_cast<size_t>(kOutside / 2 * static_cast<double>(taus.size()));
  found.low = std::min(found.tau, taus[outside]);
  found.high = std::max(found.tau, taus[taus.size() - 1 - outside]);
}

}  // namespace

Settled settled_order(const LossesBySeed& half, const LossesBySeed& full, size_t baseline,
                      const std::vector<size_t>& starred, const std::vector<std::string>& names) {
  const size_t seeds = seeds_of(half, full, names.size());
  Settled found;
  std::vector<size_t> all(seeds);
  for (size_t seed = 0; seed < seeds; ++seed) all[seed] = seed;
  found.tau = tau_over(half, full, all);
  if (std::isnan(found.tau)) {
    found.why = "there is no order: fewer than two arms have different losses";
    return found;
  }
  if (seeds < kFewestSeeds) {
    found.why = fmt::format("tau is {:.2f}; {} seeds give it no interval; train {} or more",
                            found.tau, seeds, kFewestSeeds);
    return found;
  }
  add_tau_interval(found, half, full, seeds);
  std::vector<std::string> reasons;
  if (!(found.low > kSettledAbove))
    reasons.push_back(
        fmt::format("tau of the orders at half and at full length is {:.2f}, 95 % [{:.2f}, "
                    "{:.2f}], whose lower "
                    "bound is not above {}",
                    found.tau, found.low, found.high, kSettledAbove));
  for (const size_t arm : starred) {
    const double at_half = mean_over(half[arm], all) - mean_over(half[baseline], all);
    const double at_full = mean_over(full[arm], all) - mean_over(full[baseline], all);
    if (at_half * at_full < 0)
      reasons.push_back(
          fmt::format("the starred difference of {} is {:+.4f} at full length and {:+.4f} at half",
                      names.at(arm), at_full, at_half));
  }
  found.settled = reasons.empty();
  found.why = fmt::format("{}", fmt::join(reasons, "; "));
  return found;
}

}  // namespace headlab
