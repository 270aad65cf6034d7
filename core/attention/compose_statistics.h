// What heads that are mixed say of it: of the weights that meet the values, and how much of a
// mixing leaves its head.
#pragma once

#include <string>
#include <vector>

#include "core/attention/observer.h"
#include "core/attention/statistic.h"

namespace headlab {

// What an observer finds of weights that heads mix behind the softmax.
const std::vector<Statistic>& composed_statistics();

// The share of a mixing `w` [H,H] of the alive heads that leaves its head, by layer.
Statistic off_diagonal_statistic(const char* name, const char* long_name);
void report_off_diagonal(HeadObserver& observer, const std::string& name, const Tensor& weight,
                         const Tensor& alive);

}  // namespace headlab
