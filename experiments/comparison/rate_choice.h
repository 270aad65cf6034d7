// How every arm comes to its learning rate, from the trainings that choose it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/comparison/comparison_stages.h"

namespace headlab {

// The learning rate of an arm on a task.
struct ChosenRate {
  std::optional<double> rate;  // none: what follows says why
  std::string failure;
  bool at_edge = false;  // of those that were tried: a better one may lie outside
  struct Tried {
    double rate = 0;
    std::optional<double> loss;  // mean over `seeds`; none: it is lost
    int64_t seeds = 0;           // of choose_seeds
    std::string lost = {};       // "it diverged", "it was given up: ..."; "": it is not
  };
  std::vector<Tried> tried = {};     // by rising rate; none: there was one rate
  std::optional<Tried> runner_up{};  // the next lowest loss of as many seeds
};
using ChosenRates = std::vector<std::vector<ChosenRate>>;  // by task, then arm

// choose_at of the steps, with warmup and decay that are as much shorter: every task that has
// several rates, every arm that takes part in it. Of a search the first rates.
Stage choosing_stage(const Comparison& comparison);
// With the trainings that searches ask for next, as these have ended; none: they ask for no more.
std::optional<Stage> wider_stage(const Comparison& comparison, const Stage& choosing,
                                 const StageEnd& end);
// Of every arm: the rate with the lowest final validation loss. A rate at which a training
// diverges, whose loss is not finite, or which is given up, loses; of any other failure the arm has
// no rate.
ChosenRates chosen_rates(const Comparison& comparison, const Stage& choosing, const StageEnd& end);
// Those that choose rates, as wide as what lies there makes searches, with what lies there.
std::pair<Stage, StageEnd> choosing_as_it_stands(const Comparison& comparison);

// Trainings of every length with every seed, of the arms that have a rate.
Stage final_stage(const Comparison& comparison, const ChosenRates& rates);

}  // namespace headlab
