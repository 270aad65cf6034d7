// How long passes take: the shortest of a turn, and turns of two sides compared round by round.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

namespace headlab {

// Runs `pass` and returns its seconds: of the work on a CUDA device by events on its stream, else
// of the wall clock.
double timed(const c10::Device& device, const std::function<void()>& pass);

// The shortest of the passes that fit into `seconds`, at least two; `pass` returns the seconds of
// one. The first pass of a turn finds what the other side has left in the caches, and is left out.
double shortest_of_turn(const std::function<double()>& pass, double seconds);

// Seconds of two sides, a round each.
struct PairedTimes {
  std::vector<double> own, beside;
};

// Two turns, whose order changes from round to round.
void add_round(PairedTimes& times, const std::function<double()>& own,
               const std::function<double()>& beside);

struct Range {
  double least = 0, median = 0, most = 0;
};
Range range_of(std::vector<double> values);  // of at least one
// own / beside of each round, in order.
std::vector<double> ratios_of(const PairedTimes& times);

}  // namespace headlab
