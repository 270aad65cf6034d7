// The statistics of native sparse attention beside those of its first map.
#pragma once

#include <vector>

#include "core/attention/call/observer.h"

namespace headlab {

// Of the choice, of the window's map (entropy_window) and of the gates.
std::vector<Statistic> nsa_statistics();

// Reports gates g [B,H,T,3] of the rows that count, bool [B,H,T].
void report_gates(HeadObserver& observer, const Tensor& g, const Tensor& counted);

}  // namespace headlab
