// Which head follows which dependency relation best, as a table like that of Clark et al. 2019
// (arXiv 1906.04341, table 1).
#pragma once

#include <string>

#include "experiments/analysis/analysis.h"

namespace headlab {

// A line for each relation with enough words, those of most words first: the head that predicts it
// best, in which direction, and the fixed offset that does; of add_syntax()'s arrays. Empty where
// no treebank was read.
std::string relations_text(const std::vector<Analysis>& sites);

}  // namespace headlab
